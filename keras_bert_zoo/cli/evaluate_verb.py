"""Score a fine-tuned preset on labelled data."""

from keras_bert_zoo.cli.inputs import add_input, load_model, read_input
from keras_bert_zoo.cli.output import positive_int, print_results, write_json
from keras_bert_zoo.evaluation import majority_accuracy


def add_arguments(parser) -> None:
    """Add the preset and the data."""
    add = parser.add_argument
    add("--preset", required=True, help="the folder `finetune` wrote, or any task's preset")
    add_input(parser, required=True)
    add("--label", default="label", help="a table's column of labels")
    add("--batch-size", type=positive_int, default=32)


def run(arguments) -> None:
    """Read, predict, score; the JSON also has the ids of what was wrong, and what was read."""
    from keras_bert_zoo.training.finetuning import model_facts
    from keras_bert_zoo.training.finetuning_data import data_facts
    from keras_bert_zoo.training.finetuning_tasks import TASKS, class_names, scores_of, wrong_ids

    model, task = load_model(arguments.preset, arguments.task)
    examples = read_input(arguments, task, "dev", arguments.label)
    examples.check_labelled()
    if task == "classification":
        unknown = sorted(set(examples.labels) - set(class_names(model)))
        if unknown:
            raise ValueError(
                f"{arguments.input!r} has labels that the model has not: {unknown}. It has: "
                f"{class_names(model)}."
            )
    predictions = TASKS[task].predict(model, examples.x, arguments.batch_size)
    results = {"examples": len(examples), **scores_of(examples, predictions)}
    if task == "classification":
        # Of what is scored itself: the training labels are not known here.
        share = majority_accuracy(examples.labels, examples.labels)
        results["share of the most frequent label"] = share
    wrong = wrong_ids(examples, predictions)
    results["wrong answers"] = len(wrong)
    print_results(results, f"{task.replace('_', ' ')}, {arguments.input}")
    facts = {
        "data": data_facts({"scored": examples}),
        "model": model_facts(arguments.preset, model),
    }
    write_json({**results, "wrong": wrong, **facts}, arguments.json)
