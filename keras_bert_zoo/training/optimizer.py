"""BERT's optimisers, AdamW and LAMB: warm-up, linear decay, clipping, accumulated gradients."""

from collections.abc import Mapping
from numbers import Real

import keras
from keras import ops

from keras_bert_zoo.layers.common import check_positive_int, check_rate

# TensorFlow matches "layer/bias:0", the other backends "bias".
NOT_DECAYED = r"(^|/)(bias|gamma|beta)(:\d+)?$"


@keras.saving.register_keras_serializable("keras_bert_zoo")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that climbs from 0 to `peak`, then falls to 0, both in straight lines.

    With `total_steps=None` the length is that of each `fit`, which begins a climb of its
    own; outside `fit` the rate is then `peak`. Steps are the optimiser's: batches whose
    gradients are accumulated make one. Devlin et al. 2018, appendix A.2 and A.3.

    Args:
        peak: the highest learning rate.
        warmup: the climb's share of the steps, in [0, 1).
        total_steps: steps until the rate is 0, or None.

    Example:
        >>> schedule = WarmupLinearDecay(1.0, warmup=0.5, total_steps=4)
        >>> [float(schedule(step)) for step in range(4)]
        [0.0, 0.5, 1.0, 0.5]
    """

    def __init__(self, peak: float, warmup: float = 0.1, total_steps: int | None = None):
        if not peak > 0:
            raise ValueError(f"`peak` must be over 0. Received: {peak!r}.")
        if not 0 <= warmup < 1:
            raise ValueError(f"`warmup` must be in [0, 1). Received: {warmup!r}.")
        if total_steps is not None and total_steps < 1:
            raise ValueError(
                f"`total_steps` must be None or at least 1. Received: {total_steps!r}."
            )
        self.peak = peak
        self.warmup = warmup
        self.total_steps = total_steps
        self._first_step = 0
        self._fit_steps = total_steps

    def begin_fit(self, first_step: int, steps: int | None) -> None:
        """Lay the climb and the fall over the `steps` of a fit that begins at `first_step`."""
        if self.total_steps is None:
            self._first_step, self._fit_steps = first_step, steps

    def count_from(self, steps: int) -> None:
        """Go on where the schedule is though the optimiser, `steps` old, counts from 0 again."""
        self._first_step -= steps

    def __call__(self, step):
        """Return the learning rate at `step`, a float32 tensor."""
        if self._fit_steps is None:
            return ops.convert_to_tensor(self.peak, "float32")
        step = ops.cast(step, "float32") - self._first_step
        climb = self.warmup * self._fit_steps
        fall = max((1 - self.warmup) * self._fit_steps, 1e-9)
        share = ops.where(step < climb, step / max(climb, 1e-9), (self._fit_steps - step) / fall)
        return self.peak * ops.clip(share, 0.0, 1.0)

    def get_config(self):
        """Return the constructor's arguments."""
        return {"peak": self.peak, "warmup": self.warmup, "total_steps": self.total_steps}


def adamw(
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 5e-5,
    *,
    weight_decay: float = 0.01,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    clipnorm: float | None = 1.0,
    bias_correction: bool = True,
    gradient_accumulation_steps: int | None = None,
    layer_rates: Mapping[str, float] | None = None,
) -> keras.optimizers.AdamW:
    """Return BERT's optimiser, AdamW (Devlin et al. 2018, appendix A.2).

    Weights called `bias`, and LayerNorm's `gamma` and `beta`, are not decayed.

    With accumulation the weights change every `gradient_accumulation_steps` batches, by the
    mean of these batches' gradients, which is what is clipped. It is the gradient of the one
    large batch where the loss is a mean over as many things in each; the masked-LM loss is a
    mean over the masked pieces, so batches with fewer of them count as much as the others.

    Args:
        learning_rate: a number is the peak of a `WarmupLinearDecay` over each fit.
        weight_decay: share of a weight that is taken off it, times the learning rate.
        beta_1: decay of the gradient's running mean.
        beta_2: decay of the squared gradient's running mean.
        epsilon: added to the root of the running mean of squares, before the correction.
        clipnorm: largest norm of all gradients together, or None.
        bias_correction: whether the running means are corrected for their start at 0, as
            fine-tuning needs (Mosbach et al. 2020). The authors' optimiser does without.
        gradient_accumulation_steps: batches for one change of the weights; None is 1.
        layer_rates: shares of the learning rate by the layers' paths, as
            `layer_learning_rates` makes them; a layer that none names has all of it.

    Raises:
        ValueError: a rate is not in [0, 1), `clipnorm` not over 0,
            `gradient_accumulation_steps` below 1, or a layer's share below 0.

    Example:
        >>> adamw(3e-5).weight_decay
        0.01
    """
    return BertAdamW(
        **_arguments(
            learning_rate, weight_decay, beta_1, beta_2, clipnorm, gradient_accumulation_steps
        ),
        epsilon=epsilon,
        bias_correction=bias_correction,
        layer_rates=layer_rates,
    )


def lamb(
    learning_rate: float | keras.optimizers.schedules.LearningRateSchedule,
    *,
    weight_decay: float = 0.01,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-6,
    clipnorm: float | None = 1.0,
    bias_correction: bool = True,
    gradient_accumulation_steps: int | None = None,
    layer_rates: Mapping[str, float] | None = None,
) -> keras.optimizers.Lamb:
    """Return LAMB (You et al. 2020, algorithm 2), for batches of thousands.

    Adam's update and the weight decay together are scaled to the length of the weight they
    change. Weights called `bias`, and LayerNorm's `gamma` and `beta`, are neither decayed nor
    scaled. The rate grows with the square root of the batch.

    Args:
        learning_rate: a number is the peak of a `WarmupLinearDecay` over each fit.
        weight_decay: share of a weight that is added to its update.
        beta_1: decay of the gradient's running mean.
        beta_2: decay of the squared gradient's running mean.
        epsilon: added to the root of the running mean of squares, after the correction.
        clipnorm: largest norm of all gradients together, or None.
        bias_correction: whether the running means are corrected for their start at 0.
        gradient_accumulation_steps, layer_rates: as in `adamw`.

    Raises:
        ValueError: as `adamw`.

    Example:
        >>> lamb(1e-3, gradient_accumulation_steps=8).gradient_accumulation_steps
        8
    """
    return BertLamb(
        **_arguments(
            learning_rate, weight_decay, beta_1, beta_2, clipnorm, gradient_accumulation_steps
        ),
        epsilon=epsilon,
        bias_correction=bias_correction,
        layer_rates=layer_rates,
    )


def _arguments(learning_rate, weight_decay, beta_1, beta_2, clipnorm, gradient_accumulation_steps):
    """Return the arguments that have to be checked, or said in Keras's way."""
    check_rate(weight_decay=weight_decay, beta_1=beta_1, beta_2=beta_2)
    if clipnorm is not None and not clipnorm > 0:
        raise ValueError(f"`clipnorm` must be None or over 0. Received: {clipnorm!r}.")
    steps = 1 if gradient_accumulation_steps is None else gradient_accumulation_steps
    check_positive_int(gradient_accumulation_steps=steps)
    if isinstance(learning_rate, Real):
        learning_rate = WarmupLinearDecay(float(learning_rate))
    return {
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "beta_1": beta_1,
        "beta_2": beta_2,
        "global_clipnorm": clipnorm,
        "gradient_accumulation_steps": steps if steps > 1 else None,
    }


class _BertOptimizer:
    """What both optimisers add to Keras's; it holds also after they were saved and loaded."""

    def __init__(self, *args, bias_correction=True, layer_rates=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.bias_correction = bias_correction
        # Pairs, because Keras on TensorFlow would make a variable's owner of a dictionary.
        self._layer_rates = tuple((layer_rates or {}).items())
        self._share = 1.0
        for name, share in self._layer_rates:
            if not isinstance(share, Real) or not share >= 0:
                raise ValueError(
                    f"`layer_rates[{name!r}]` must be a number of at least 0. Received: {share!r}."
                )
        self.exclude_from_weight_decay(var_names=[NOT_DECAYED])

    def _get_current_learning_rate(self):
        # Keras gives a schedule the number of batches, accumulated ones too.
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = self._learning_rate(self.iterations)
        else:
            rate = super()._get_current_learning_rate()
        return rate if self._share == 1.0 else rate * self._share

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        for share, rows in self._by_share(trainable_variables):
            super()._backend_update_step(
                [grads[i] for i in rows],
                [trainable_variables[i] for i in rows],
                learning_rate if share == 1.0 else learning_rate * share,
            )

    def _apply_weight_decay(self, variables):
        # PyTorch's loop over all weights at once refuses none at all.
        decayed = [variable for variable in variables if self._use_weight_decay(variable)]
        for share, rows in self._by_share(decayed):
            # Keras asks for the rate again here.
            self._share = share
            super()._apply_weight_decay([decayed[i] for i in rows])
            self._share = 1.0

    def _by_share(self, variables):
        """Return pairs of a share of the rate and the numbers of the variables that have it."""
        groups = {}
        for i, variable in enumerate(variables):
            names = [
                (len(name), share)
                for name, share in self._layer_rates
                if f"{variable.path}/".startswith(f"{name}/")
            ]
            # The longest name says most.
            groups.setdefault(max(names)[1] if names else 1.0, []).append(i)
        return groups.items()

    def get_config(self):
        """Return the constructor's arguments."""
        return {
            **super().get_config(),
            "bias_correction": self.bias_correction,
            "layer_rates": dict(self._layer_rates),
        }


if keras.backend.backend() == "torch":
    import torch

    # What `keras.optimizers.AdamW(...)` returns here: it updates all weights at once. A subclass
    # of the plain class would update them one by one.
    from keras.src.backend.torch.optimizers.torch_adamw import AdamW as _TorchAdamW

    class _BackendAdamW(_TorchAdamW):
        """AdamW by PyTorch's own kernels: Keras's passes over every weight a dozen times."""

        def _clip_gradients(self, grads):
            if not self.global_clipnorm:
                return super()._clip_gradients(grads)
            norms = torch._foreach_norm(grads, 2, torch.float32)
            norm = torch.linalg.vector_norm(torch.stack(norms))
            # Of an infinite norm NaN, so that it is seen.
            scale = self.global_clipnorm / norm.clamp(self.global_clipnorm) + (norm - norm)
            own = {id(variable.value.grad) for variable in self._trainable_variables}
            if not all(id(gradient) in own for gradient in grads):
                return torch._foreach_mul(grads, scale)
            # What `backward` left with the weights has no other use. A copy of it all would be
            # the most memory that a step takes.
            torch._foreach_mul_(grads, scale)
            return grads

        def _parallel_update_step(self, grads, variables, learning_rate):
            values = [variable.value for variable in variables]
            # The kernel goes through memory, whatever the strides.
            if (
                self.amsgrad
                or values[0].device.type != "cpu"
                or not all(value.is_contiguous() for value in values)
            ):
                super()._parallel_update_step(grads, variables, learning_rate)
                return
            indices = [self._get_variable_index(variable) for variable in variables]
            step = ops.cast(self.iterations + 1, "float32")
            rate = learning_rate * ops.sqrt(1 - self.beta_2**step) / (1 - self.beta_1**step)
            # The kernel has its correction before it adds epsilon, Keras after it: so late a step
            # as this leaves nothing to correct.
            late = torch.tensor(1e9)
            torch._fused_adam_(
                values,
                [g.to(value.dtype).contiguous() for g, value in zip(grads, values, strict=True)],
                [self._momentums[index].value for index in indices],
                [self._velocities[index].value for index in indices],
                [],
                [late] * len(values),
                lr=rate,
                beta1=self.beta_1,
                beta2=self.beta_2,
                weight_decay=0.0,
                eps=self.epsilon,
                amsgrad=False,
                maximize=False,
            )

elif keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    class _BackendAdamW(keras.optimizers.AdamW):
        """AdamW by TensorFlow's own kernels: Keras's passes over every weight a dozen times."""

        def _clip_gradients(self, grads):
            if not self.global_clipnorm:
                return super()._clip_gradients(grads)
            return tf.clip_by_global_norm(grads, self.global_clipnorm)[0]

        def _apply_weight_decay(self, variables):
            if tf.distribute.has_strategy() or self.weight_decay is None:
                super()._apply_weight_decay(variables)
                return
            # Two passes over a weight, where Keras's difference takes seven.
            kept = 1 - self.weight_decay * self.learning_rate
            for variable in variables:
                if self._use_weight_decay(variable):
                    variable.assign(variable * tf.cast(kept, variable.dtype))

        def update_step(self, gradient, variable, learning_rate):
            if self.amsgrad or isinstance(gradient, tf.IndexedSlices):
                super().update_step(gradient, variable, learning_rate)
                return
            index = self._get_variable_index(variable)
            step = tf.cast(self.iterations + 1, variable.dtype)
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=self._momentums[index].value.handle,
                v=self._velocities[index].value.handle,
                grad=tf.cast(gradient, variable.dtype),
                lr=tf.cast(learning_rate, variable.dtype),
                beta1=self.beta_1,
                beta2=self.beta_2,
                beta1_power=self.beta_1**step,
                beta2_power=self.beta_2**step,
                epsilon=self.epsilon,
            )

else:
    _BackendAdamW = keras.optimizers.AdamW


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertAdamW(_BertOptimizer, _BackendAdamW):
    """AdamW that leaves biases and LayerNorm undecayed, with the bias correction or without."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        if not self.bias_correction:
            # Keras has the correction as a factor on the rate. Its inverse takes it out here,
            # where the weights have been decayed already.
            step = ops.cast(self.iterations + 1, "float32")
            learning_rate = (
                learning_rate * (1 - self.beta_1**step) / ops.sqrt(1 - self.beta_2**step)
            )
        super()._backend_update_step(grads, trainable_variables, learning_rate)


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertLamb(_BertOptimizer, keras.optimizers.Lamb):
    """LAMB as in the paper: Keras's own decays the weights apart from the scaled update."""

    def update_step(self, gradient, variable, learning_rate):
        """Change one weight and its two running means."""
        index = self._get_variable_index(variable)
        mean, square = self._momentums[index], self._velocities[index]
        self.assign_add(mean, (gradient - mean) * (1 - self.beta_1))
        self.assign_add(square, (ops.square(gradient) - square) * (1 - self.beta_2))
        mean, square = ops.convert_to_tensor(mean), ops.convert_to_tensor(square)
        if self.bias_correction:
            step = ops.cast(self.iterations + 1, variable.dtype)
            mean, square = mean / (1 - self.beta_1**step), square / (1 - self.beta_2**step)
        update = mean / (ops.sqrt(square) + self.epsilon)
        if self._use_weight_decay(variable):
            update = update + self.weight_decay * variable
            length, update_length = ops.norm(variable), ops.norm(update)
            scaled = ops.logical_and(length > 0, update_length > 0)
            update = update * ops.where(scaled, length / update_length, 1.0)
        self.assign_sub(variable, learning_rate * update)

    def _apply_weight_decay(self, variables):
        """Do nothing: the decay is a part of the update."""
