"""The activations of the output step as functions of JAX, for gradients and for other devices."""

from __future__ import annotations

from convalgos.core.epilogue import ActivationLike, activation_of
from convalgos.jax.engine import JaxArray, jax, jnp


def activation_by_jax(v: JaxArray, activation: ActivationLike) -> JaxArray:
    """An activation as `convalgos.conv` takes it, of each element."""
    found = activation_of(activation)
    if found is None:
        return v
    match found.name:
        case "clip":
            return jnp.clip(v, found.a, found.b)
        case "leaky_relu":
            return jax.nn.leaky_relu(v, found.a)
        case "hard_swish":
            return (1 + found.a) * jax.nn.hard_swish(v) + found.b
        case "elu":
            return found.b * jax.nn.elu(v, found.a)
        case "gelu":
            return jax.nn.gelu(v, approximate=False)
        case "gelu_tanh":
            return jax.nn.gelu(v, approximate=True)
    return getattr(jax.nn, found.name)(v)  # relu, sigmoid, silu, tanh, softplus, mish
