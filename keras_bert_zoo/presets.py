"""Names to models: `list_presets` and `from_preset`. What is not here `downloads` fetches."""

import difflib
import functools
import hashlib
import importlib.resources
import importlib.util
import json
import logging
import pathlib
import re
import warnings

import keras

from keras_bert_zoo import models, preprocessing
from keras_bert_zoo.checkpoints import google, huggingface, keras_hub
from keras_bert_zoo.checkpoints.rules import assign, build
from keras_bert_zoo.downloads import from_hugging_face, from_kaggle
from keras_bert_zoo.models import preset_folder

logger = logging.getLogger("keras_bert_zoo")

# A task's model and its preprocessor.
TASKS = {
    "backbone": (models.BertBackbone, preprocessing.BertPreprocessor),
    "pretrainer": (models.BertPretrainer, preprocessing.BertPretrainerPreprocessor),
    "masked_lm": (models.BertMaskedLM, preprocessing.BertMaskedLMPreprocessor),
    "multiple_choice": (models.BertMultipleChoice, preprocessing.BertMultipleChoicePreprocessor),
    "next_sentence": (models.BertNextSentence, preprocessing.BertNextSentencePreprocessor),
    "question_answerer": (
        models.BertQuestionAnswerer,
        preprocessing.BertQuestionAnswererPreprocessor,
    ),
    "text_classifier": (models.BertTextClassifier, preprocessing.BertTextClassifierPreprocessor),
    "text_embedder": (models.BertTextEmbedder, preprocessing.BertTextEmbedderPreprocessor),
    "token_classifier": (models.BertTokenClassifier, preprocessing.BertTokenClassifierPreprocessor),
}

# Foreign formats: what knows a folder of each, in the order that they are tried, and the file
# that reads them.
FORMATS = {
    "tf1": (google.is_checkpoint, google),
    "keras_hub": (keras_hub.is_preset, keras_hub),
    "transformers": (lambda folder: (folder / "config.json").exists(), huggingface),
}


# === Cards ===


@functools.cache
def _cards() -> dict[str, dict]:
    try:
        folder = importlib.resources.files("keras_bert_zoo.cards")
    except ModuleNotFoundError:
        # A checkout that is not installed.
        folder = pathlib.Path(__file__).parent.parent / "presets"
    files = [file for file in folder.iterdir() if file.name.endswith(".json")]
    cards = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {card["name"]: card for card in sorted(cards, key=_card_order)}


def _card_order(card):
    return card["language"], card["casing"], card["parameters"], card["name"]


def list_presets(
    *,
    language: str | None = None,
    casing: str | None = None,
    max_parameters: int | None = None,
    task: str | None = None,
) -> list[dict]:
    """Return the presets' cards: name, size, casing, language, sources, what is known of each.

    Args:
        language: only presets for this language, such as `"en"`, or `"multilingual"`.
        casing: `"cased"` or `"uncased"`.
        max_parameters: only presets of at most so many parameters.
        task: only presets that this task of `from_preset` needs no new head for.

    Returns:
        The cards, ordered by language, casing and size; none if no preset fits all filters.

    Raises:
        ValueError: no preset has the language or casing, or the task is not known.

    Example:
        >>> cards = {card["name"]: card for card in list_presets(language="en", task="pretrainer")}
        >>> cards["bert_base_en_uncased"]["parameters"]
        109482240
    """
    cards = list(_cards().values())
    for argument, wanted, known in (
        ("language", language, {card["language"] for card in cards}),
        ("casing", casing, {card["casing"] for card in cards}),
        ("task", task, TASKS),
    ):
        if wanted is not None and wanted not in known:
            raise ValueError(f"`{argument}` must be one of {sorted(known)}. Received: {wanted!r}.")
    return [
        json.loads(json.dumps(card))
        for card in cards
        if language in (None, card["language"])
        and casing in (None, card["casing"])
        and (max_parameters is None or card["parameters"] <= max_parameters)
        and (task is None or task in _tasks(card))
    ]


def _tasks(card):
    """Return the tasks that a card's checkpoint has all weights of."""
    tasks = {"backbone", *card.get("heads", [])}
    if {"masked_lm", "next_sentence"} <= tasks:
        tasks.add("pretrainer")
    if "pooling" in card:
        tasks.add("text_embedder")
    return tasks


def find_card(name: str) -> dict | None:
    """Return the card with that name or alias, or None."""
    for card in _cards().values():
        if name == card["name"] or name in card.get("aliases", []):
            return card
    return None


# === Loading ===


def from_preset(
    source: str,
    task: str = "backbone",
    *,
    load_weights: bool = True,
    dtype=None,
    sequence_length: int | None = None,
    **task_arguments,
) -> keras.Model:
    """Return a model from a preset's name, a folder or the Hugging Face hub.

    Args:
        source: a name from `list_presets`; a folder that `save_to_preset` wrote; a folder
            with a Hugging Face checkpoint, one of the authors' TF1 checkpoints or a KerasHub
            preset; `hf://owner/name`, with `@revision` if one is meant;
            `kaggle://owner/model/keras/variation`, with `/version` if one is meant; or a name
            of KerasHub's, as `keras_hub://name` where `list_presets` has the name too.
        task: `"backbone"`, `"pretrainer"`, `"masked_lm"`, `"multiple_choice"`,
            `"next_sentence"`, `"question_answerer"`, `"text_classifier"`, `"text_embedder"` or
            `"token_classifier"`.
        load_weights: False gives the architecture with new weights.
        dtype: the model's dtype or policy, such as `"mixed_bfloat16"`.
        sequence_length: most pieces of a text that the preprocessor keeps, or that a question
            answerer's windows have; where None the preset's own, or the model's
            `max_sequence_length`, of a question answerer at most 384.
        **task_arguments: arguments of the task's model, such as `num_classes`.

    Returns:
        A `keras.Model` on the current backend. The checkpoint's own heads are loaded where
        the task has them; a new one is named in a warning.

    Raises:
        ValueError: the source or the task is not known, the checkpoint is no BERT or is
            incomplete, or a downloaded file has not the card's hash.
        ConnectionError: a hub did not give what is not in its cache.

    Example:
        >>> model = from_preset("bert_tiny_en_uncased", load_weights=False)
        >>> model.count_params()
        4385920
    """
    if task not in TASKS:
        raise ValueError(f"`task` must be one of {list(TASKS)}. Received: {task!r}.")
    card = None if pathlib.Path(source).is_dir() else find_card(str(source))
    if card is not None and not load_weights and task == "backbone":
        # Architecture alone needs no download.
        _refuse_arguments(task_arguments)
        return models.BertBackbone(**card["architecture"], dtype=dtype)
    folder = _resolve(str(source), card, load_weights)
    options = {"load_weights": load_weights, "dtype": dtype, "sequence_length": sequence_length}
    if preset_folder.is_preset(folder):
        return _from_zoo_folder(folder, task, task_arguments, **options)
    return _from_foreign_folder(folder, card or {}, task, task_arguments, **options)


def load_tokenizer(source: str) -> preprocessing.BertTokenizer:
    """Return the tokenizer of what `from_preset` takes, without its model.

    Raises:
        ValueError: as `from_preset`; or the source has no vocabulary.
    """
    card = None if pathlib.Path(source).is_dir() else find_card(str(source))
    folder = _resolve(str(source), card, load_weights=False)
    if not preset_folder.is_preset(folder):
        folder = huggingface.encoder_folder(folder)
        return _foreign_format(folder).read_tokenizer(folder, **(card or {}).get("tokenizer", {}))
    tokenizer = preset_folder.read_tokenizer(folder)
    if tokenizer is None:
        raise ValueError(f"The preset {str(folder)!r} has no vocabulary.")
    return tokenizer


def source_task(source: str) -> str:
    """Return the task that a source is a model of: of a foreign one, the task that it has heads of.

    Raises:
        ValueError: as `from_preset`.
    """
    card = None if pathlib.Path(source).is_dir() else find_card(str(source))
    folder = _resolve(str(source), card, load_weights=True)
    if preset_folder.is_preset(folder):
        name = preset_folder.class_name(folder)
        return next(task for task, (known, _) in TASKS.items() if known.__name__ == name)
    pooled_folder, folder = folder, huggingface.encoder_folder(folder)
    reader = _foreign_format(folder)
    stated = reader.stated_class(pooled_folder)
    with reader.open_tensors(folder) as tensors:
        heads = {
            head
            for head, rules in reader.HEAD_RULES.items()
            if all(name in tensors for rule in rules for name in rule.theirs)
        }

    def fit(task):
        model_class = TASKS[task][0]
        wanted = set(getattr(model_class, "heads", ()))
        # Among tasks with the same heads it is the one that the checkpoint names.
        return len(wanted) if wanted <= heads else -1, model_class.__name__ == stated

    return max(TASKS, key=fit)


def _resolve(source: str, card: dict | None, load_weights: bool) -> pathlib.Path:
    """Return a local folder with the source's files, downloaded if need be."""
    if card is not None:
        folder = resolve_card(card, load_weights)
    elif source.startswith("hf://"):
        repo, at, revision = source.removeprefix("hf://").partition("@")
        if at and not revision:
            raise ValueError(f"`source` {source!r} has no revision after its @.")
        folder = from_hugging_face(repo, revision or None, load_weights)
    elif source.startswith(("kaggle://", "keras_hub://")) or _is_keras_hub_name(source):
        folder = from_kaggle(_kaggle_handle(source), load_weights)
    else:
        folder = pathlib.Path(source)
        if not folder.is_dir():
            names = [name for c in _cards().values() for name in (c["name"], *c.get("aliases", []))]
            close = difflib.get_close_matches(source, names, n=3)
            raise ValueError(
                f"`source` {source!r} is neither a preset's name nor a folder."
                + (f" Did you mean {' or '.join(map(repr, close))}?" if close else "")
                + " `list_presets()` gives the names; a Hugging Face repository is "
                "hf://owner/name, a preset of KerasHub keras_hub://name."
            )
    return folder


def _foreign_format(folder):
    """Return the file of `checkpoints` that reads the folder."""
    for recognises, reader in FORMATS.values():
        if recognises(folder):
            return reader
    raise ValueError(
        f"{str(folder)!r} has no config.json and no {google.CONFIG_FILE}: it is neither a preset "
        "of this package nor a checkpoint of another."
    )


def resolve_card(card: dict, load_weights: bool = True) -> pathlib.Path:
    """Return a local folder with a card's files, checked against its hashes."""
    for place in card["sources"]:
        if place["kind"] == "package":
            spec = importlib.util.find_spec(place["module"])
            if spec is None:
                continue
            folder = pathlib.Path(spec.origin).parent / place["folder"]
        else:
            folder = from_hugging_face(place["repo"], place.get("revision"), load_weights)
        if load_weights:
            for name, expected in card.get("sha256", {}).items():
                _check_hash(folder / name, expected)
        return folder
    raise ValueError(
        f"The preset {card['name']!r} comes from a package that is not installed: "
        f"{[place.get('package') for place in card['sources']]}."
    )


def _check_hash(file, expected):
    with open(file, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        raise ValueError(
            f"{str(file)!r} is not the file this preset was checked with: its sha256 is {found}, "
            f"expected {expected}. Delete it and load again, or load the folder by its path if "
            "you trust it."
        )


def _is_keras_hub_name(source):
    """Say whether a source that may be a mistyped name is one of KerasHub's presets."""
    if pathlib.Path(source).is_dir() or not re.fullmatch(r"[\w.]+", source):
        return False
    if importlib.util.find_spec("keras_hub") is None:
        return False
    return keras_hub.kaggle_handle(source) is not None


def _kaggle_handle(source):
    """Return what is meant by `kaggle://handle`, or by the name of a preset of KerasHub's."""
    scheme, _, name = source.rpartition("://")
    handle = name if scheme == "kaggle" else keras_hub.kaggle_handle(name)
    if handle is None:
        raise ValueError(f"KerasHub has no BERT preset {name!r}.")
    return handle


def _from_zoo_folder(folder, task, task_arguments, *, load_weights, dtype, sequence_length):
    saved = preset_folder.read(folder, load_weights, dtype)
    model_class, preprocessor_class = TASKS[task]
    if model_class is type(saved) and not task_arguments and sequence_length is None:
        return saved
    preprocessor = saved.preprocessor
    if preprocessor is not None:
        length = _default_length(preprocessor_class, preprocessor.sequence_length)
        kept = {"sequence_length": length}
        if type(preprocessor) is preprocessor_class:
            kept = preprocessor.get_config()
            del kept["tokenizer"]
            # Other classes are another task's.
            if "num_classes" in task_arguments or "class_names" in task_arguments:
                kept.pop("columns", None)
        elif task == "backbone":
            kept["buckets"] = []
        if sequence_length is not None:
            kept["sequence_length"] = sequence_length
        preprocessor = preprocessor_class(preprocessor.tokenizer, **kept)
    backbone = getattr(saved, "backbone", saved)
    if model_class is models.BertBackbone:
        return _make(model_class, backbone, {"preprocessor": preprocessor, **task_arguments})
    if model_class is type(saved):
        kept = saved.get_config()
        for name in ("backbone", "preprocessor", "name", "frozen", "optimizer_built"):
            del kept[name]
        if "num_classes" in task_arguments:
            kept.pop("class_names", None)
        task_arguments = {**kept, **task_arguments}
    model = model_class(backbone, **{"preprocessor": preprocessor, **task_arguments})
    new = []
    for head in model.heads:
        ours, theirs = getattr(model, head), getattr(saved, head, None)
        # Classifiers of several tasks are called the same.
        if head == "classifier_head" and (type(saved), _reads(saved)) != (
            model_class,
            _reads(model),
        ):
            theirs = None
        if theirs is not None and _form(ours) == _form(theirs):
            ours.set_weights(theirs.get_weights())
        else:
            new.append(head)
    if load_weights:
        _warn_new(folder, new)
    return model


def _reads(model):
    """Return of what a task makes a text's vector, where it is not always the pooled output."""
    return getattr(model, "pooling", "pooled"), getattr(model, "layer_way", "last")


def _form(head):
    """Return what two heads must share for one to take the other's weights."""
    settings = [getattr(head, name, None) for name in ("hidden_activation", "layer_norm_epsilon")]
    return settings, [tuple(weight.shape) for weight in head.weights]


def _from_foreign_folder(
    folder, card, task, task_arguments, *, load_weights, dtype, sequence_length
):
    model_class, preprocessor_class = TASKS[task]
    pooled_folder, folder = folder, huggingface.encoder_folder(folder)
    reader = _foreign_format(folder)
    config = reader.read_config(folder)
    arguments = reader.backbone_arguments(config)
    make_backbone = functools.partial(models.BertBackbone, **arguments, dtype=dtype)
    if "preprocessor" not in task_arguments and (task != "backbone" or _has_vocabulary(folder)):
        tokenizer = reader.read_tokenizer(folder, **card.get("tokenizer", {}))
        length = sequence_length or _default_length(
            preprocessor_class, reader.sequence_length(folder, arguments["max_sequence_length"])
        )
        # The encoder's outputs are as long as its rows, so its rows are all of one length.
        buckets = [] if task == "backbone" else None
        preprocessor = preprocessor_class(tokenizer, length, buckets)
        task_arguments = {**task_arguments, "preprocessor": preprocessor}
    if task == "text_embedder":
        stated = {key: card[key] for key in ("pooling", "normalize") if key in card}
        stated = stated or reader.embedder_arguments(pooled_folder)
        task_arguments = {**stated, **task_arguments}
    elif task == "masked_lm":
        task_arguments = {**reader.MASKED_LM_HEAD, **task_arguments}
    if not load_weights:
        return _make(model_class, make_backbone(), task_arguments)

    with reader.open_tensors(folder) as tensors:
        if task in ("text_classifier", "token_classifier"):
            task_arguments = {
                **reader.classifier_arguments(config, tensors, model_class, task_arguments),
                **task_arguments,
            }
        rules = reader.backbone_rules(arguments["num_layers"], arguments["num_heads"])
        has_pooler = all(name in tensors for rule in reader.POOLER_RULES for name in rule.theirs)
        if has_pooler:
            rules += reader.POOLER_RULES
        backbone, loaded = build(make_backbone, rules, tensors)
        model = _make(model_class, backbone, task_arguments)
        variables = {variable.path: variable for variable in model.variables}
        new = [] if has_pooler or not getattr(model, "uses_pooler", True) else ["pooler"]
        for head in getattr(model, "heads", ()):
            rules = reader.HEAD_RULES.get(head)
            fits = _reads(model) == ("pooled", "last")
            if rules and fits and reader.has_part(config, tensors, model, head, rules):
                loaded += assign(variables, rules, tensors)
            else:
                new.append(head)
        left_over = sorted(set(tensors) - set(loaded))
    _report(folder, loaded, new, left_over)
    return model


def _default_length(preprocessor_class, longest):
    """Return the length of the task's rows, at most `longest`, where none is asked for."""
    return min(getattr(preprocessor_class, "default_sequence_length", longest), longest)


def _make(model_class, backbone, task_arguments):
    if model_class is models.BertBackbone:
        arguments = dict(task_arguments)
        backbone.preprocessor = arguments.pop("preprocessor", None)
        _refuse_arguments(arguments)
        return backbone
    return model_class(backbone, **task_arguments)


def _has_vocabulary(folder):
    return any((folder / name).exists() for name in ("vocab.txt", "tokenizer.json"))


def _refuse_arguments(task_arguments):
    if task_arguments:
        raise ValueError(
            f"The task 'backbone' takes no further arguments. Received: {sorted(task_arguments)}."
        )


def _report(folder, loaded, new, left_over):
    """Say what came of a checkpoint's tensors; what a user has to know comes as a warning."""
    logger.info(
        "%s: loaded %d tensors; new: %s; left over: %s.",
        folder,
        len(loaded),
        ", ".join(new) or "nothing",
        ", ".join(left_over) or "nothing",
    )
    _warn_new(folder, new)
    layers = [name for name in left_over if "encoder" in name]
    if layers:
        warnings.warn(
            f"The checkpoint {str(folder)!r} has more encoder layers than its configuration says: "
            f"{len(layers)} tensors are not loaded, the first {layers[0]!r}.",
            stacklevel=5,
        )


def _warn_new(folder, new):
    if new:
        warnings.warn(
            f"The checkpoint {str(folder)!r} has no {' and no '.join(new)}: new weights, to be "
            "trained before the model's predictions mean anything.",
            stacklevel=5,
        )
