"""What every BERT model shares: strings into `fit`, checked ids, presets."""

import contextlib
import warnings
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_bert_zoo.layers.common import check_positive_int
from keras_bert_zoo.models import export, preset_folder
from keras_bert_zoo.models.inputs import InputRules, is_data_loader
from keras_bert_zoo.preprocessing import dataset as text_dataset
from keras_bert_zoo.preprocessing.row_transforms import pack_rows
from keras_bert_zoo.preprocessing.texts import text_columns
from keras_bert_zoo.training import distribution
from keras_bert_zoo.training.optimizer import WarmupLinearDecay, adamw

DEFAULT_BATCH_SIZE = 32
_OPTIONAL_INPUTS = {"example_starts", "output_positions"}


class TextModel:
    """Mixin for `keras.Model`: takes texts where a preprocessor is given, ids otherwise.

    `fit`, `evaluate` and `predict` are Keras's own, with two differences. Where the model
    has a preprocessor, `x` may be texts: a list, array or tensor of strings, a tuple
    (first, second) of two of them, or a batched `tf.data.Dataset` of them. Batches are
    padded to their own bucket of lengths. And ids outside their tables are refused
    before a batch reaches the weights, on every backend.
    """

    preprocessor = None
    one_output_a_row = False
    load_optimizer = False
    # `InputRules` checks the inputs, and knows the optional ones.
    input_spec = None

    # === Inputs ===

    def __call__(self, inputs, *args, **kwargs):
        """Run the model on a dictionary of id tensors, checked where their values are known."""
        if isinstance(inputs, dict):
            inputs = {name: x for name, x in inputs.items() if x is not None}
        self.input_rules().check(inputs)
        inputs = {
            name: x if hasattr(x, "dtype") else keras.ops.convert_to_tensor(x, "int32")
            for name, x in inputs.items()
        }
        call = super().__call__
        if kwargs.get("training"):
            call = distribution.training_call(self, call)
        return call(inputs, *args, **kwargs)

    # Keras tells only a `call` that names `training` when it trains.
    def call(self, inputs, training=None, mask=None):
        """Run the layers on the model's inputs; those that may be left out become None."""
        return super().call(self._all_inputs(inputs), training=training, mask=mask)

    # Keras would take the inputs that are given for the first ones that there are.
    def compute_output_spec(self, inputs, training=None, mask=None):
        """Return the outputs' shapes and dtypes."""
        return self._run_through_graph(
            self._all_inputs(inputs), operation_fn=lambda operation: operation.compute_output_spec
        )

    def _all_inputs(self, inputs):
        return {name: inputs.get(name) for name in self.input}

    def input_rules(self) -> InputRules:
        """Return what the model's inputs must be."""
        encoder = getattr(self, "backbone", self)
        limits = {
            "token_ids": encoder.vocabulary_size,
            "segment_ids": encoder.num_segments,
            "padding_mask": 2,
        }
        return InputRules(
            names=frozenset(self.input) - _OPTIONAL_INPUTS,
            optional_names=frozenset(self.input) & _OPTIONAL_INPUTS,
            limits=limits,
            max_length=encoder.max_sequence_length,
        )

    # === Training and prediction ===

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        *,
        validation_batch_size=None,
        seed=0,
        packed=False,
        **kwargs,
    ):
        """Train as `keras.Model.fit` does; `x` may be texts.

        `seed` sets the order of texts, a new one each epoch. A `WarmupLinearDecay` without
        a length of its own is laid over this fit's steps.

        With `packed=True` a batch of texts is laid into as few rows of the preprocessor's
        `sequence_length` as hold it, several texts to a row, each by itself under attention: the
        same steps with less padding, where texts are much shorter than that. A loss of one's own
        needs the reduction `"mean_with_sample_weight"` then.
        """
        if validation_split:
            if self._is_model_input(x) or validation_data is not None:
                raise ValueError(
                    "`validation_split` is for texts, without `validation_data`. "
                    "Split the inputs before `fit` and pass `validation_data`."
                )
            (x, y, sample_weight), validation_data = _split(x, y, sample_weight, validation_split)
        if validation_data is not None:
            validation_data = self._validation_batches(
                validation_data, validation_batch_size or batch_size
            )
        if packed:
            self._check_packing(x, class_weight)
        callbacks = keras.tree.flatten(callbacks) if callbacks else []
        x, y, sample_weight, batch_size, steps = self._batches(
            x,
            y,
            sample_weight,
            batch_size,
            callbacks,
            shuffle=shuffle,
            seed=seed,
            epochs=epochs,
            initial_epoch=initial_epoch,
        )
        if packed:
            x = x.map(keras.utils.pack_x_y_sample_weight)
            x = pack_rows(
                x,
                self.preprocessor.sequence_length,
                batch_size=None,
                window=None,
                # By their shape vectors, one a text, could be taken for labels of positions.
                label_kinds="example" if self.one_output_a_row else None,
            )
        # Only arrays are Keras's to shuffle.
        shuffle = shuffle and isinstance(x, dict)
        steps_per_epoch = steps_per_epoch or steps
        self._begin_schedule(x, batch_size, steps_per_epoch, epochs - initial_epoch)
        with self._weights_kept(), distribution.training(self, super().__call__):
            return super().fit(
                x=distribution.batches(x),
                y=y,
                batch_size=batch_size,
                epochs=epochs,
                verbose=distribution.verbose(verbose),
                callbacks=callbacks,
                validation_data=validation_data,
                validation_batch_size=validation_batch_size,
                shuffle=shuffle,
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                **kwargs,
            )

    def evaluate(
        self, x=None, y=None, batch_size=None, verbose="auto", sample_weight=None, **kwargs
    ):
        """Score as `keras.Model.evaluate` does; `x` may be texts."""
        if not kwargs.get("_use_cached_eval_dataset"):
            x, order = self._longest_first(x)
            x, y, sample_weight, batch_size, _ = self._batches(
                x, y, sample_weight, batch_size, order=order
            )
            x = distribution.batches(x)
        with self._weights_kept():
            return super().evaluate(
                x=x,
                y=y,
                batch_size=batch_size,
                verbose=distribution.verbose(verbose),
                sample_weight=sample_weight,
                **kwargs,
            )

    def predict(self, x, batch_size=None, verbose="auto", **kwargs):
        """Predict as `keras.Model.predict` does; `x` may be texts.

        Texts are batched with those of like length, and the outputs stand in the texts' order.
        """
        x, order = self._longest_first(x)
        if order is not None and kwargs.get("steps") is not None:
            raise ValueError(
                "`predict` takes `steps` with data sets, and texts in memory as a whole. "
                f"Received: steps={kwargs['steps']!r}."
            )
        filled = order
        if order is not None and keras.backend.backend() == "jax":
            filled = _filled(order, DEFAULT_BATCH_SIZE if batch_size is None else batch_size)
        x, _, _, batch_size, _ = self._batches(x, None, None, batch_size, order=filled)
        with self._weights_kept(), distribution.predicting(x) as (x, real_rows):
            outputs = super().predict(x, batch_size=batch_size, verbose=verbose, **kwargs)
        outputs = real_rows(outputs)
        if order is None:
            return outputs
        places = np.argsort(order)
        return keras.tree.map_structure(lambda rows: rows[places], outputs)

    def train_on_batch(self, x, *args, **kwargs):
        """Train on one batch of ids, checked."""
        return super().train_on_batch(self.input_rules().checked(x), *args, **kwargs)

    def test_on_batch(self, x, *args, **kwargs):
        """Score one batch of ids, checked."""
        return super().test_on_batch(self.input_rules().checked(x), *args, **kwargs)

    def predict_on_batch(self, x):
        """Predict one batch of ids, checked."""
        return super().predict_on_batch(self.input_rules().checked(x))

    def train_step(self, *args):
        """Train on a batch as Keras does."""
        results = super().train_step(*args)
        if keras.backend.backend() == "torch":
            # Keras would have the gradients stand beside the next batch's activations.
            self.zero_grad()
        return results

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Return Keras's loss; rows that only fill up a batch for many devices are left out."""
        y_pred = distribution.mark_real_rows(x, y_pred)
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """Return Keras's metrics; rows that only fill up a batch are left out."""
        y_pred = distribution.mark_real_rows(x, y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def get_metrics_result(self):
        """Return the metrics over all processes, which must all ask for them."""
        return distribution.metrics_of_all_processes(
            self.metrics_variables, super().get_metrics_result
        )

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # TensorFlow's. Keras can't take a batch of several workers to be a dictionary.
        if iterator is not None and distribution.distribution() is not None:
            iterator, data_batch = None, distribution.first_replicas_batch(iterator)
        super()._maybe_symbolic_build(iterator, data_batch)

    def _is_model_input(self, x):
        """Say whether `x` holds ids already, rather than texts."""
        if x is None or isinstance(x, dict | keras.utils.PyDataset):
            return True
        if hasattr(x, "element_spec"):
            spec = x.element_spec
            return isinstance(spec[0] if isinstance(spec, tuple) else spec, dict)
        return hasattr(x, "__next__") or is_data_loader(x)

    def _longest_first(self, x):
        """Return texts in memory as columns of pieces, and the order in which they pad least.

        Or return `x` as it is and None: outputs as long as their batch's rows can only be joined
        where all rows are alike.
        """
        is_other = self._is_model_input(x) or hasattr(x, "element_spec")
        if is_other or self.preprocessor is None or not self.one_output_a_row:
            return x, None
        columns = text_columns(x)
        if not columns[0].shape[0]:
            return x, None
        tokenizer = self.preprocessor.tokenizer
        columns = tuple(text_dataset.to_pieces(tokenizer, column) for column in columns)
        return columns, text_dataset.longest_first(columns)

    def _batches(self, x, y, sample_weight, batch_size, callbacks=None, **order):
        """Return what Keras is to iterate over, and an epoch's steps where that must be said."""
        if self._is_model_input(x):
            if isinstance(x, dict):
                self.check_labels(y)
            x = self.input_rules().checked(x)
            if distribution.distribution() is None:
                return x, y, sample_weight, batch_size, None
            return self._global_batches(x, y, sample_weight, batch_size, order)
        if self.preprocessor is None:
            raise ValueError(
                "The model has no preprocessor, so it takes a dictionary with "
                f"{sorted(self.input)}. Received: {type(x).__name__}. For texts give it a "
                "`preprocessor`, as `from_preset` does."
            )
        if hasattr(x, "element_spec"):
            batches, set_epoch = text_dataset.map_dataset(self.preprocessor, x)
            if callbacks is not None:
                callbacks.append(
                    keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: set_epoch(epoch))
                )
            return batches, None, None, None, None
        columns = text_columns(x)
        size = columns[0].shape[0]
        if not size:
            raise ValueError("`x` holds no texts.")
        # Here, lest the error come from within a graph.
        self.preprocessor.check_columns(len(columns))
        segments = self.input_rules().limits["segment_ids"]
        if len(columns) > segments:
            raise ValueError(
                f"{len(columns)} texts an example need as many segments; the backbone's "
                f"`num_segments` is {segments}."
            )
        y, sample_weight = (
            _rows(v, n, size) for v, n in ((y, "y"), (sample_weight, "sample_weight"))
        )
        self.check_labels(y)
        batch_size = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
        check_positive_int(batch_size=batch_size)
        is_sorted = order.get("order") is not None
        if is_sorted and size <= batch_size and distribution.distribution() is None:
            batch = text_dataset.one_batch(self.preprocessor, columns, y, sample_weight, **order)
            return *batch, batch_size, None
        batches = text_dataset.batches(
            self.preprocessor, columns, y, sample_weight, batch_size=batch_size, **order
        )
        return batches, None, None, None, -(-size // batch_size)

    def _check_packing(self, x, class_weight):
        """Refuse to pack what can't be."""
        reasons = {
            f"for {type(self).__name__}": "example_starts" not in self.input,
            "for ids, which `preprocessing.pack_rows` packs": self._is_model_input(x),
            "with `class_weight`; `sample_weight` can say the same": class_weight is not None,
            "under `distribute`": distribution.distribution() is not None,
        }
        for reason, holds in reasons.items():
            if holds:
                raise ValueError(f"There is no `packed=True` {reason}.")

    def _global_batches(self, x, y, sample_weight, batch_size, order):
        """Return ids as a dataset of batches, which many devices can share."""
        if hasattr(x, "element_spec"):
            return x, None, None, None, None
        if not isinstance(x, dict):
            raise ValueError(
                "With `distribute`, `x` must be texts, a dictionary of arrays or a "
                f"`tf.data.Dataset` of batches. Received: {type(x).__name__}."
            )
        batch_size = DEFAULT_BATCH_SIZE if batch_size is None else batch_size
        check_positive_int(batch_size=batch_size)
        columns = tuple(ops.convert_to_numpy(values) for values in x.values())
        size = len(columns[0])
        y, sample_weight = (
            _rows(v, n, size) for v, n in ((y, "y"), (sample_weight, "sample_weight"))
        )
        batches = text_dataset.batches(
            _Ids(tuple(x)), columns, y, sample_weight, batch_size=batch_size, **order
        )
        return batches, None, None, None, -(-size // batch_size)

    def _validation_batches(self, data, batch_size):
        if not isinstance(data, tuple):
            return distribution.batches(self._batches(data, None, None, batch_size)[0])
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        x, order = self._longest_first(x)
        x, y, sample_weight, *_ = self._batches(x, y, sample_weight, batch_size, order=order)
        x = distribution.batches(x)
        return x if y is None else keras.utils.pack_x_y_sample_weight(x, y, sample_weight)

    def check_labels(self, y) -> None:
        """Refuse labels that stand for no class; a task that has classes says how many."""

    def _begin_schedule(self, x, batch_size, steps_per_epoch, epochs):
        optimizer = getattr(self, "optimizer", None)
        # Under float16 Keras wraps the optimiser in one that scales the loss.
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        schedule = getattr(optimizer, "_learning_rate", None)
        if not isinstance(schedule, WarmupLinearDecay) or schedule.total_steps is not None:
            return
        if steps_per_epoch is None:
            steps_per_epoch = _count_steps(x, batch_size)
        steps = None if steps_per_epoch is None else steps_per_epoch * epochs
        if steps is None:
            warnings.warn(
                "The data do not say how many batches they have, so the learning rate stays at its "
                "peak. Pass `steps_per_epoch`, or a `WarmupLinearDecay` with `total_steps`.",
                stacklevel=3,
            )
        # The schedule counts the optimiser's steps, and each may accumulate several batches.
        batches = int(optimizer._iterations.numpy())
        per_step = optimizer.gradient_accumulation_steps or 1
        if steps is not None:
            steps = max(1, (batches + steps) // per_step - batches // per_step)
        schedule.begin_fit(batches // per_step, steps)
        # A compiled step has the old schedule's numbers in it.
        self.train_function = None

    @contextlib.contextmanager
    def _weights_kept(self):
        """Give a model its weights back when a loop fails on JAX.

        There Keras takes the values out of the variables while it loops, and an error
        before the first finished step would lose them.
        """
        if keras.backend.backend() != "jax":
            yield
            return
        values = {id(variable): variable.value for variable in self._all_variables()}
        try:
            yield
        except BaseException:
            self.jax_state_sync()
            for variable in self._all_variables():
                if variable._value is None:
                    # What this loop itself made, an optimiser's moments, began as zeros.
                    zeros = keras.ops.zeros(variable.shape, variable.dtype)
                    variable.assign(values.get(id(variable), zeros))
            raise

    def _all_variables(self):
        optimizer = getattr(self, "optimizer", None)
        return [*self.variables, *self.metrics_variables, *getattr(optimizer, "variables", [])]

    # === Saving ===

    def get_config(self):
        """Return what every model's config has: its name, what is frozen, if it was trained."""
        layers = self._flatten_layers(include_self=False)
        return {
            "name": self.name,
            "frozen": [layer.path for layer in layers if not layer.trainable],
            "optimizer_built": getattr(getattr(self, "optimizer", None), "built", False),
        }

    @classmethod
    def from_config(cls, config):
        """Make the model `get_config` described, the same layers frozen."""
        config = dict(config)
        frozen = set(config.pop("frozen"))
        optimizer_built = config.pop("optimizer_built")
        for part in ("backbone", "preprocessor"):
            # The backbone of a preset is made before, with its weights.
            if isinstance(config.get(part), dict):
                config[part] = keras.saving.deserialize_keras_object(config[part])
        model = cls(**config)
        if frozen:
            # A layer comes before the layers inside it. One that is right as it is stays untouched:
            # it may share a layer, as a masked-LM head does the token table, that is right too.
            for layer in model._flatten_layers(include_self=False):
                if layer.trainable == (layer.path in frozen):
                    layer.trainable = not layer.trainable
        model.load_optimizer = optimizer_built
        return model

    def save_to_preset(self, folder: str) -> None:
        """Write the model into `folder`: config, weights, vocabulary, preprocessing.

        The folder appears whole or not at all. A compiled model's optimiser state is kept.
        `keras_bert_zoo.from_preset(folder)` reads it on any backend. Several processes all
        call it, and the first one writes.

        Raises:
            ValueError: `folder` exists and is not a preset of this package.
        """
        with distribution.saving(self._all_variables()):
            if distribution.is_first_process():
                preset_folder.write(self, folder)

    def export_to_transformers(self, folder: str) -> None:
        """Write the model into `folder` as Hugging Face's transformers loads it.

        The folder has `config.json`, `model.safetensors` and, with a preprocessor, the
        tokenizer's files; that of an embedder is one of sentence-transformers too. Their
        classes give logits, whatever `activation` a classifier has here. Weights are
        written in float32. The folder appears whole or not at all; several processes all
        call it, and the first one writes.

        Args:
            folder: a path that is new, empty or that this method wrote.

        Raises:
            ValueError: transformers has no way to say what the model is, as with
                `causal=True`; or `folder` holds something else.

        Example:
            >>> import os, tempfile
            >>> backbone = BertBackbone(
            ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8)
            >>> folder = os.path.join(tempfile.mkdtemp(), "exported")
            >>> BertTextClassifier(backbone, num_classes=2).export_to_transformers(folder)
            >>> sorted(os.listdir(folder))
            ['config.json', 'model.safetensors']
        """
        # The formats know the models, and not the other way about.
        from keras_bert_zoo.checkpoints import huggingface_export

        with distribution.saving(self._all_variables()):
            if distribution.is_first_process():
                huggingface_export.write(self, folder)

    def export_to_tf1(self, folder: str) -> None:
        """Write the model into `folder` as the BERT authors' TF1 code reads it.

        The folder has `bert_config.json`, `bert_model.ckpt.*` and, with a preprocessor,
        `vocab.txt`, as their releases have. Casing and class names have no place there:
        `--do_lower_case` tells their programs. Weights are written in float32. The folder
        appears whole or not at all; several processes all call it, and the first one writes.

        Args:
            folder: a path that is new, empty or that this method wrote.

        Raises:
            ValueError: their code can't compute what the model does, as with exact GELU;
                or `folder` holds something else.

        Example:
            >>> import os, tempfile
            >>> backbone = BertBackbone(
            ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=4,
            ...     intermediate_dim=8, hidden_activation="gelu_tanh")
            >>> folder = os.path.join(tempfile.mkdtemp(), "exported")
            >>> BertPretrainer(backbone).export_to_tf1(folder)
            >>> sorted(os.listdir(folder))[:2]
            ['bert_config.json', 'bert_model.ckpt.data-00000-of-00001']
        """
        # The formats know the models, and not the other way about.
        from keras_bert_zoo.checkpoints import google

        with distribution.saving(self._all_variables()):
            if distribution.is_first_process():
                google.write(self, folder)

    def export_to_keras_hub(self, folder: str) -> None:
        """Write the model into `folder` as a preset that KerasHub's class of its name loads.

        KerasHub must be installed. Its BERT runs tanh GELU and an epsilon of 1e-12 only; class
        names have no place in its presets, and its own tokenizer cuts some texts into other
        pieces than the authors'. Weights are written in float32. The folder appears whole or
        not at all; several processes all call it, and the first one writes.

        Args:
            folder: a path that is new, empty or that this method wrote.

        Raises:
            ValueError: KerasHub can't compute what the model does, as with exact GELU; or
                `folder` holds something else.
            ImportError: KerasHub is not installed.

        Example:
            >>> import os, tempfile
            >>> backbone = BertBackbone(
            ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=4,
            ...     intermediate_dim=8, hidden_activation="gelu_tanh", causal=True)
            >>> backbone.export_to_keras_hub(os.path.join(tempfile.mkdtemp(), "exported"))
            Traceback (most recent call last):
            ValueError: KerasHub can't run this model: causal is True, and it has only False.
        """
        from keras_bert_zoo.checkpoints import keras_hub

        with distribution.saving(self._all_variables()):
            if distribution.is_first_process():
                keras_hub.write(self, folder)

    def export(
        self,
        filepath,
        format="tf_saved_model",
        *,
        pairs: bool | None = None,
        quantize: str | None = None,
        **kwargs,
    ):
        """Write the model to be served: as a SavedModel, an ONNX file or a LiteRT file.

        A SavedModel, with a preprocessor, takes strings: `serve(texts)`, with `pairs=True`
        `serve(first, second)`. It returns a dictionary: `probabilities` of a classifier, or
        `value` of a regression, with `labels` where the classes have names, else the model's
        outputs. A tagger's texts are split at white space; `probabilities` (texts, words,
        num_classes) and `labels` (texts, words) are 0 and empty behind a text's last word. A
        question answerer's `serve(first, second)`, questions and contexts, returns what `answer`
        does: `text`, `start`, `end`, `score` and `null_odds`. Of multiple choice,
        `serve(prompts, choices)`, strings (batch,) and (batch, choices), returns
        `probabilities` and `indices`, the likeliest. A process that loads it needs tensorflow
        and tensorflow_text alone.

        ONNX and LiteRT files take the model's inputs, int32 of any batch size and length, by
        their names, `token_ids`, `segment_ids` and `padding_mask`, and give numbers by theirs:
        `probabilities` or `value` of a classifier, `probabilities` of a tagger, `probabilities`
        and `indices` of choices, otherwise what `predict` gives, by the names of its outputs,
        or `outputs` if it is one. `filepath` becomes a folder with `model.onnx` or
        `model.tflite`, `export.json`, which names inputs, outputs and classes, and, with a
        preprocessor, the tokenizer's files: `tokenizers.Tokenizer.from_file("tokenizer.json")`
        makes ids, type_ids and attention_mask of a text, and so does
        `transformers.AutoTokenizer.from_pretrained(folder)`. A `filepath` that ends in `.onnx`
        or `.tflite` becomes the file alone.

        On other backends than TensorFlow, a process of its own exports. What is written appears
        whole or not at all.

        Args:
            filepath: a path that is new, an empty folder, or what this method wrote.
            format: `"tf_saved_model"`, `"onnx"` or `"litert"`; another is Keras's own to do.
            pairs: whether a SavedModel takes pairs of texts; what the task takes where None.
            quantize: `"int8"` keeps an ONNX or LiteRT file's large matrices in 8 bits, a
                quarter of the size.
            **kwargs: Keras's own, for its own formats.

        Raises:
            ValueError: an argument does not go with the format, or `filepath` holds something
                else.
            ImportError: the format needs a package that is not installed.

        Example:
            >>> backbone = BertBackbone(
            ...     vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=4, intermediate_dim=8)
            >>> backbone.export("served", quantize="int8")
            Traceback (most recent call last):
            ValueError: `quantize` is for ONNX and LiteRT files. Received: format='tf_saved_model'.
        """
        if format not in export.FORMATS:
            return super().export(filepath, format, **kwargs)
        if kwargs:
            raise ValueError(f"`format={format!r}` takes no {sorted(kwargs)}.")
        with distribution.saving(self._all_variables()):
            if distribution.is_first_process():
                export.write(self, filepath, format, pairs, quantize)

    def serving_outputs(self, outputs) -> dict:
        """Return the model's outputs under the names that they are served by."""
        return outputs if isinstance(outputs, dict) else {"outputs": outputs}

    def serving_strings(self, pairs: bool | None):
        """Return the shapes of the strings that a SavedModel takes, by name, and its function.

        A task whose texts are more than columns of strings has its own.
        """
        if pairs is None:
            pairs = self.preprocessor.columns == 2
        names = ["first", "second"] if pairs else ["texts"]
        self.preprocessor.check_columns(len(names))

        def serve(*texts):
            return self.serving_outputs(self(self.preprocessor.pack(*texts), training=False))

        return dict.fromkeys(names, [None]), serve


class BertTask(TextModel):
    """Mixin for a task: `self.backbone`, heads, and defaults that are right for fine-tuning.

    A task sets `heads`, names of its attributes that are heads, `uses_pooler`,
    `one_output_a_row` if its outputs have no axis as long as a row, and `num_labels` where its
    labels are numbers of classes, and defines `defaults()`, the loss and metrics `compile` takes
    where `"auto"` is asked for. It is compiled from the start.
    """

    heads: tuple[str, ...] = ()
    uses_pooler = True
    num_labels: int | None = None

    # A pooler that the task does not use has no gradient. It is no variable to be trained:
    # Keras would warn of it, and on JAX decay it.

    @property
    def trainable_variables(self):
        """The variables that training changes."""
        return self._split_pooler(super().trainable_variables)[0]

    @property
    def trainable_weights(self):
        """The weights that training changes."""
        return self._split_pooler(super().trainable_weights)[0]

    @property
    def non_trainable_variables(self):
        """All other variables."""
        unused = self._split_pooler(super().trainable_variables)[1]
        return [*super().non_trainable_variables, *unused]

    @property
    def non_trainable_weights(self):
        """All other weights."""
        unused = self._split_pooler(super().trainable_weights)[1]
        return [*super().non_trainable_weights, *unused]

    def _split_pooler(self, variables):
        unused = [] if self.uses_pooler else self.backbone.pooler.variables
        unused = {id(variable) for variable in unused}
        return (
            [variable for variable in variables if id(variable) not in unused],
            [variable for variable in variables if id(variable) in unused],
        )

    def set_up(self, backbone, preprocessor) -> None:
        """Take the parts every task has, and compile with the defaults.

        Raises:
            ValueError: the preprocessor makes inputs that the backbone has no tables for.
        """
        if preprocessor is not None:
            _check_fits("sequence_length", preprocessor, "max_sequence_length", backbone)
            _check_fits("vocabulary_size", preprocessor.tokenizer, "vocabulary_size", backbone)
        self.backbone = backbone
        self.preprocessor = preprocessor
        # A functional model's own policy, by which Keras decides whether to scale the loss,
        # is not its layers' unless it is told.
        self.dtype_policy = backbone.dtype_policy
        self.compile()

    def compile(self, optimizer="auto", loss="auto", *, weighted_metrics="auto", **kwargs):
        """Compile as `keras.Model.compile` does; `"auto"` is what the task needs.

        The automatic optimiser is AdamW at 5e-5 with warm-up over a tenth of each fit's
        steps and linear decay, clipping at 1.0, and no decay on LayerNorm and bias.
        """
        defaults = self.defaults()
        automatic_loss = _is_auto(loss)
        if _is_auto(weighted_metrics):
            # Metrics of one's own, or labels of another form, leave no place for ours.
            fits = automatic_loss and not kwargs.get("metrics")
            weighted_metrics = defaults["weighted_metrics"] if fits else None
        super().compile(
            optimizer=adamw() if _is_auto(optimizer) else optimizer,
            loss=defaults["loss"] if automatic_loss else loss,
            weighted_metrics=weighted_metrics,
            **kwargs,
        )
        distribution.make_global(self)

    def check_labels(self, y) -> None:
        """Refuse class numbers outside the task's classes.

        Raises:
            ValueError: names the label and the number of classes. On JAX such a label would
                count as no loss at all.
        """
        if y is None or self.num_labels is None or isinstance(y, dict):
            return
        y = keras.ops.convert_to_numpy(y)
        if y.ndim == 1 or (y.ndim == 2 and y.shape[1] == 1):
            wrong = y[(y < 0) | (y >= self.num_labels)]
            if wrong.size:
                raise ValueError(
                    f"`y` must be at least 0 and below {self.num_labels}, the number of classes. "
                    f"Received: {wrong[0]}."
                )

    def compile_from_config(self, config):
        """Compile as the saved model was, with the optimiser's variables ready to be loaded."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.load_optimizer:
            self.optimizer.build(self.trainable_variables)

    def get_config(self):
        """Return the backbone, the preprocessor and what every model's config has."""
        backbone = keras.saving.serialize_keras_object(self.backbone)
        # The vocabulary stands in the config once.
        backbone["config"]["preprocessor"] = None
        return {
            "backbone": backbone,
            "preprocessor": keras.saving.serialize_keras_object(self.preprocessor),
            **super().get_config(),
        }


class _Ids(NamedTuple):
    """Stands where a preprocessor would: the columns are the model's inputs already."""

    names: tuple[str, ...]

    def batch_graph(self, columns, y, sample_weight, *, example_ids, epoch):
        """Return the columns under their names, with what stands behind them."""
        inputs = dict(zip(self.names, columns, strict=True))
        return keras.utils.pack_x_y_sample_weight(inputs, y, sample_weight)


def weighted_mean(loss: type[keras.losses.Loss], **arguments) -> keras.losses.Loss:
    """Return a loss whose mean is over the weights and not over the entries.

    What only fills a row up, a masked-LM label or a packed example, then counts for nothing.
    """
    return loss(reduction="mean_with_sample_weight", **arguments)


def _is_auto(argument):
    return isinstance(argument, str) and argument == "auto"


def _check_fits(name, preprocessor, table, backbone):
    size, room = getattr(preprocessor, name), getattr(backbone, table)
    if size > room:
        raise ValueError(
            f"The preprocessor's {name} is {size}, but the backbone's {table} is {room}."
        )


def _rows(values, name, size):
    """Return labels or weights as arrays with `size` rows."""
    if values is None:
        return None

    def rows(value):
        value = ops.convert_to_numpy(value) if ops.is_tensor(value) else np.asarray(value)
        if value.dtype.kind not in "iufb":
            raise ValueError(f"`{name}` must hold numbers. Received: {value.ravel()[:1]!r}.")
        if value.shape[:1] != (size,):
            raise ValueError(
                f"`{name}` must have one row an example. Received: shape {value.shape} for "
                f"{size} examples."
            )
        return value

    if isinstance(values, dict):
        return {key: rows(value) for key, value in values.items()}
    return rows(values)


def _filled(order, batch_size):
    """Return the order with its last text again until the last batch has a power of two rows.

    JAX compiles for each number of rows, and so for few of them.
    """
    check_positive_int(batch_size=batch_size)
    batch_size = int(batch_size)
    rows = (len(order) - 1) % batch_size + 1
    missing = min(2 ** (rows - 1).bit_length(), batch_size) - rows
    return np.pad(order, (0, missing), mode="edge")


def _split(x, y, sample_weight, share):
    """Return the head of the examples, and their tail as validation data, as Keras splits."""
    columns = text_columns(x)
    size = columns[0].shape[0]
    at = int(size * (1 - share))
    if not 0 < at < size:
        raise ValueError(f"`validation_split`={share} leaves {at} of {size} examples to train on.")
    arrays = [_rows(v, n, size) for v, n in ((y, "y"), (sample_weight, "sample_weight"))]

    def part(values, rows):
        return None if values is None else keras.tree.map_structure(lambda v: v[rows], values)

    head = [part(values, slice(at)) for values in arrays]
    tail = [part(values, slice(at, None)) for values in arrays if values is not None]
    return (
        (tuple(c[:at] for c in columns), *head),
        (tuple(c[at:] for c in columns), *tail),
    )


def _count_steps(x, batch_size):
    """Return the batches of an epoch of ids, or None where only the end will tell."""
    if isinstance(x, dict):
        return -(-len(x["token_ids"]) // (batch_size or DEFAULT_BATCH_SIZE))
    if hasattr(x, "cardinality"):
        steps = int(x.cardinality())
        return steps if steps > 0 else None
    return x.num_batches if isinstance(x, keras.utils.PyDataset) else None
