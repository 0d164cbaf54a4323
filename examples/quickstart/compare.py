"""Score a bag-of-words classifier on the same reviews and put it beside the fine-tuned BERT.

Ends with 1 where BERT is not the better one.

python examples/quickstart/compare.py TRAIN.csv HELD_OUT.csv FINETUNED.json
"""

import json
import pathlib
import sys

from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from keras_bert_zoo.cli.output import print_table
from keras_bert_zoo.data import read_table

train, held_out = read_table(sys.argv[1]), read_table(sys.argv[2])
fine_tuned = json.loads(pathlib.Path(sys.argv[3]).read_text(encoding="utf-8"))

bag_of_words = make_pipeline(CountVectorizer(), LogisticRegression(max_iter=1000))
bag_of_words.fit(train["text"], train["label"])
accuracies = {
    "majority class": fine_tuned["dev accuracy of the majority class"],
    "bag of words, logistic regression": bag_of_words.score(held_out["text"], held_out["label"]),
    "fine-tuned all-MiniLM-L6-v2": fine_tuned["dev accuracy"],
}
print_table(
    [{"classifier": name, "held-out accuracy": value} for name, value in accuracies.items()]
)
best = max(accuracies, key=accuracies.get)
sys.exit(0 if best.startswith("fine-tuned") else "The fine-tuned model is not the best.")
