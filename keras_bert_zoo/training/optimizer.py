"""BERT's optimiser: AdamW, warm-up, linear decay, clipping, no decay on LayerNorm and bias."""

from numbers import Real

import keras
from keras import ops


@keras.saving.register_keras_serializable("keras_bert_zoo")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that climbs from 0 to `peak`, then falls to 0, both in straight lines.

    With `total_steps=None` the length is that of each `fit`, which begins a climb of its
    own; outside `fit` the rate is then `peak`. Devlin et al. 2018, appendix A.2 and A.3.

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
    clipnorm: float = 1.0,
) -> keras.optimizers.AdamW:
    """Return BERT's optimiser, with Adam's bias correction.

    A number as `learning_rate` is the peak of a `WarmupLinearDecay` over each fit. Weights
    called `bias`, and LayerNorm's `gamma` and `beta`, are not decayed. The gradient's global
    norm is clipped at `clipnorm`. Devlin et al. 2018, appendix A.2; for the bias
    correction Mosbach et al. 2020.

    Example:
        >>> adamw(3e-5).weight_decay
        0.01
    """
    if isinstance(learning_rate, Real):
        learning_rate = WarmupLinearDecay(float(learning_rate))
    return BertAdamW(
        learning_rate,
        weight_decay=weight_decay,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        global_clipnorm=clipnorm,
    )


if keras.backend.backend() == "torch":
    # What `keras.optimizers.AdamW(...)` returns here: it updates all weights at once. A subclass
    # of the plain class would update them one by one.
    from keras.src.backend.torch.optimizers.torch_adamw import AdamW as _BackendAdamW
else:
    _BackendAdamW = keras.optimizers.AdamW


@keras.saving.register_keras_serializable("keras_bert_zoo")
class BertAdamW(_BackendAdamW):
    """AdamW that leaves biases and LayerNorm undecayed, also after it was saved and loaded."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # TensorFlow matches "layer/bias:0", the other backends "bias".
        self.exclude_from_weight_decay(var_names=[r"(^|/)(bias|gamma|beta)(:\d+)?$"])
