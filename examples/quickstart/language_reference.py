"""Write the Python language reference, which every CPython ships, as text files, one a topic.

python examples/quickstart/language_reference.py FOLDER
"""

import pathlib
import sys
from pydoc_data.topics import topics

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for name, text in topics.items():
    (folder / f"{name}.txt").write_text(text, encoding="utf-8")
print(f"Wrote {len(topics)} topics to {folder}")
