"""Fine-tune a preset and the same model from random weights, alike, on tasks in GLUE's layout.

    python tools/compare_pretraining.py runs/hour/preset --task CoLA=GLUE/CoLA STS-B=GLUE/STS-B

Prints each task's dev score after the last epoch, mean and standard deviation over the seeds:
Matthews' correlation for CoLA, Spearman's for STS-B, accuracy for the others, in percent. Keeps
every score in `--output` as it comes, and goes on from there.
"""

import argparse
import functools
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples" / "paper_tables"))

from run import finetune, kept, read_task

STARTS = {"pre-trained": {}, "random": {"pretrained": False}}


def main() -> None:
    """Fine-tune and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset")
    parser.add_argument("--task", nargs="+", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--examples", type=int, default=4000, help="of training, at most")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--output", required=True, help="folder for the scores")
    arguments = parser.parse_args()
    settings = {
        name: getattr(arguments, name)
        for name in ("epochs", "batch_size", "learning_rate", "sequence_length")
    }
    folder = pathlib.Path(arguments.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings.json").write_text(json.dumps(vars(arguments), indent=1) + "\n")
    print(f"{'task':10}{'start':14}{'mean':>8}{'sd':>8}  runs")
    for argument in arguments.task:
        task = read_task(argument, arguments.examples)
        for start in arguments.starts:
            scores = []
            for seed in arguments.seeds:
                make = functools.partial(
                    finetune, arguments.preset, STARTS[start], task, settings, seed
                )
                result = kept(folder / f"{task.name}_{start}_{seed}.json", make)
                scores.append(result["value"])
            spread = statistics.stdev(scores) if len(scores) > 1 else float("nan")
            runs = " ".join(f"{score:.1f}" for score in scores)
            mean = statistics.mean(scores)
            print(f"{task.name:10}{start:14}{mean:8.2f}{spread:8.2f}  {runs}", flush=True)


if __name__ == "__main__":
    main()
