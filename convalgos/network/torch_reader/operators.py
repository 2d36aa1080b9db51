"""Which function makes steps of which operator of ATen; all others are left to torch."""

from __future__ import annotations

import operator
from typing import Any

import torch

from convalgos.network.torch_reader import convolutions, elementwise, maps, selections
from convalgos.network.torch_reader.conversion import Convert

ATEN = torch.ops.aten

OPERATORS: dict[Any, Convert] = {
    operator.getitem: convolutions.first_of_several,
    ATEN.convolution.default: convolutions.convolution_step,
    ATEN.linear.default: convolutions.linear_step,
    ATEN.batch_norm.default: convolutions.batch_norm_step,
    ATEN._native_batch_norm_legit_no_training.default: convolutions.batch_norm_step,
    ATEN.layer_norm.default: convolutions.layer_norm_step,
    ATEN.native_layer_norm.default: convolutions.layer_norm_step,
    ATEN.group_norm.default: convolutions.group_norm_step,
    ATEN.native_group_norm.default: convolutions.group_norm_step,
    ATEN.instance_norm.default: convolutions.group_norm_step,
    ATEN.add.Tensor: elementwise.add_step(1),
    ATEN.add.Scalar: elementwise.add_step(1),
    ATEN.sub.Tensor: elementwise.add_step(-1),
    ATEN.sub.Scalar: elementwise.add_step(-1),
    ATEN.rsub.Scalar: elementwise.subtracted_step,
    ATEN.mul.Tensor: elementwise.multiply_step,
    ATEN.mul.Scalar: elementwise.multiply_step,
    ATEN.div.Tensor: elementwise.divide_step,
    ATEN.div.Scalar: elementwise.divide_step,
    ATEN.relu.default: elementwise.activation_named("relu"),
    ATEN.silu.default: elementwise.activation_named("silu"),
    ATEN.hardswish.default: elementwise.activation_named("hard_swish"),
    ATEN.sigmoid.default: elementwise.activation_named("sigmoid"),
    ATEN.relu6.default: elementwise.relu6_step,
    ATEN.gelu.default: elementwise.gelu_step,
    ATEN.tanh.default: elementwise.activation_named("tanh"),
    ATEN.mish.default: elementwise.activation_named("mish"),
    ATEN.elu.default: elementwise.elu_step,
    ATEN.selu.default: elementwise.selu_step,
    ATEN.softplus.default: elementwise.softplus_step,
    ATEN.leaky_relu.default: elementwise.leaky_relu_step,
    ATEN.prelu.default: elementwise.prelu_step,
    ATEN.hardtanh.default: elementwise.clip_step("min_val", "max_val"),
    ATEN.clamp.default: elementwise.clip_step("min", "max"),
    ATEN.clamp_min.default: elementwise.clip_step("min", "max"),
    ATEN.hardsigmoid.default: elementwise.hard_sigmoid_steps,
    ATEN.mean.dim: maps.mean_step,
    ATEN.upsample_linear1d.vec: maps.resizing_step,
    ATEN.upsample_bilinear2d.vec: maps.resizing_step,
    ATEN.cat.default: maps.concatenation_step,
    ATEN.chunk.default: selections.split_step,
    ATEN.split.Tensor: selections.split_step,
    ATEN.split_with_sizes.default: selections.split_step,
    ATEN.slice.Tensor: selections.slice_step,
    ATEN.channel_shuffle.default: selections.shuffle_step,
    ATEN.native_channel_shuffle.default: selections.shuffle_step,
    ATEN.permute.default: maps.permuted,
    ATEN.transpose.int: maps.permuted,
}
for _ndim in (1, 2, 3):
    OPERATORS |= {
        getattr(ATEN, f"conv{_ndim}d").default: convolutions.convolution_step,
        getattr(ATEN, f"conv{_ndim}d").padding: convolutions.convolution_step,
        getattr(ATEN, f"conv_transpose{_ndim}d").default
        if _ndim == 1
        else getattr(ATEN, f"conv_transpose{_ndim}d").input: convolutions.transposed_step,
        getattr(ATEN, f"max_pool{_ndim}d").default: maps.pooling_step("max", _ndim),
        getattr(ATEN, f"avg_pool{_ndim}d").default: maps.pooling_step("mean", _ndim),
        getattr(ATEN, f"adaptive_avg_pool{_ndim}d").default: maps.adaptive_pooling_step("mean"),
        getattr(ATEN, f"upsample_nearest{_ndim}d").vec: maps.upsampling_step,
        getattr(ATEN, f"upsample_nearest{_ndim}d").default: maps.upsampling_step,
    }
OPERATORS |= dict.fromkeys(convolutions.PADS, convolutions.pad_step)
OPERATORS |= dict.fromkeys(
    (
        ATEN.flatten.using_ints, ATEN.view.default, ATEN.reshape.default, ATEN._unsafe_view.default,
        ATEN.squeeze.dim, ATEN.squeeze.dims, ATEN.squeeze.default, ATEN.unsqueeze.default,
    ),
    maps.reshaped_tensor,
)  # fmt: skip
OPERATORS |= dict.fromkeys(
    (
        ATEN.dropout.default, ATEN.feature_dropout.default, ATEN.alpha_dropout.default, ATEN.clone.default,
        ATEN.contiguous.default, ATEN.detach.default, ATEN.alias.default,
    ),
    maps.unchanged,
)  # fmt: skip
