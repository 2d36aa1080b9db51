"""Which function makes nodes of ONNX of which operator of ATen; all others are left to torch."""

from __future__ import annotations

from typing import Any

import torch

from convalgos.network.torch_reader import elementwise, layers, maps, moves, recurrent, reductions, sampling
from convalgos.network.torch_reader.attention import attention_nodes
from convalgos.network.torch_reader.translation import Translate

ATEN = torch.ops.aten

ELEMENTWISE: dict[Any, Translate] = {
    ATEN.add.Tensor: elementwise.arithmetic_nodes("Add"),
    ATEN.add.Scalar: elementwise.arithmetic_nodes("Add"),
    ATEN.sub.Tensor: elementwise.arithmetic_nodes("Sub"),
    ATEN.sub.Scalar: elementwise.arithmetic_nodes("Sub"),
    ATEN.rsub.Scalar: elementwise.subtracted_nodes,
    ATEN.mul.Tensor: elementwise.arithmetic_nodes("Mul"),
    ATEN.mul.Scalar: elementwise.arithmetic_nodes("Mul"),
    ATEN.div.Tensor: elementwise.arithmetic_nodes("Div"),
    ATEN.div.Scalar: elementwise.arithmetic_nodes("Div"),
    ATEN.maximum.default: elementwise.arithmetic_nodes("Max"),
    ATEN.minimum.default: elementwise.arithmetic_nodes("Min"),
    ATEN.eq.Scalar: elementwise.compared_nodes("Equal"),
    ATEN.eq.Tensor: elementwise.compared_nodes("Equal"),
    ATEN.ne.Scalar: elementwise.compared_nodes("Equal", negated=True),
    ATEN.ne.Tensor: elementwise.compared_nodes("Equal", negated=True),
    ATEN.lt.Scalar: elementwise.compared_nodes("Less"),
    ATEN.lt.Tensor: elementwise.compared_nodes("Less"),
    ATEN.le.Scalar: elementwise.compared_nodes("LessOrEqual"),
    ATEN.le.Tensor: elementwise.compared_nodes("LessOrEqual"),
    ATEN.gt.Scalar: elementwise.compared_nodes("Greater"),
    ATEN.gt.Tensor: elementwise.compared_nodes("Greater"),
    ATEN.ge.Scalar: elementwise.compared_nodes("GreaterOrEqual"),
    ATEN.ge.Tensor: elementwise.compared_nodes("GreaterOrEqual"),
    ATEN.logical_and.default: elementwise.of_booleans_nodes("And"),
    ATEN.__and__.Tensor: elementwise.of_booleans_nodes("And"),
    ATEN.__or__.Tensor: elementwise.of_booleans_nodes("Or"),
    ATEN.bitwise_and.Tensor: elementwise.of_booleans_nodes("And"),
    ATEN.logical_or.default: elementwise.of_booleans_nodes("Or"),
    ATEN.bitwise_or.Tensor: elementwise.of_booleans_nodes("Or"),
    ATEN.logical_not.default: elementwise.of_booleans_nodes("Not"),
    ATEN.bitwise_not.default: elementwise.of_booleans_nodes("Not"),
    ATEN.where.self: elementwise.chosen_nodes,
    ATEN.masked_fill.Scalar: elementwise.filled_nodes,
    ATEN.masked_fill.Tensor: elementwise.filled_nodes,
    ATEN.to.dtype: elementwise.cast_nodes,
    ATEN._to_copy.default: elementwise.cast_nodes,
    ATEN.type_as.default: elementwise.cast_nodes,
    ATEN.neg.default: elementwise.function_nodes("Neg"),
    ATEN.abs.default: elementwise.function_nodes("Abs"),
    ATEN.exp.default: elementwise.function_nodes("Exp"),
    ATEN.log.default: elementwise.function_nodes("Log"),
    ATEN.sqrt.default: elementwise.function_nodes("Sqrt"),
    ATEN.reciprocal.default: elementwise.function_nodes("Reciprocal"),
    ATEN.rsqrt.default: elementwise.inverse_root_nodes,
    **{
        getattr(ATEN, name).default: elementwise.function_nodes(name.capitalize())
        for name in ("sin", "cos", "tan", "floor", "ceil", "sign", "atan")
    },
    ATEN.square.default: elementwise.square_nodes,
    ATEN.pow.Tensor_Scalar: elementwise.power_nodes,
    ATEN.relu.default: elementwise.activation_named_nodes("relu"),
    ATEN.silu.default: elementwise.activation_named_nodes("silu"),
    ATEN.hardswish.default: elementwise.activation_named_nodes("hard_swish"),
    ATEN.sigmoid.default: elementwise.activation_named_nodes("sigmoid"),
    ATEN.tanh.default: elementwise.activation_named_nodes("tanh"),
    ATEN.mish.default: elementwise.activation_named_nodes("mish"),
    ATEN.glu.default: elementwise.glu_nodes,
    ATEN.relu6.default: elementwise.relu6_nodes,
    ATEN.gelu.default: elementwise.gelu_nodes,
    ATEN.elu.default: elementwise.elu_nodes,
    ATEN.selu.default: elementwise.selu_nodes,
    ATEN.softplus.default: elementwise.softplus_nodes,
    ATEN.leaky_relu.default: elementwise.leaky_relu_nodes,
    ATEN.prelu.default: elementwise.prelu_nodes,
    ATEN.hardtanh.default: elementwise.clip_nodes("min_val", "max_val"),
    ATEN.clamp.default: elementwise.clip_nodes("min", "max"),
    ATEN.clamp_min.default: elementwise.clip_nodes("min", "max"),
    ATEN.hardsigmoid.default: elementwise.hard_sigmoid_nodes,
}
LAYERS: dict[Any, Translate] = {
    ATEN.convolution.default: layers.convolution_nodes,
    ATEN.conv_transpose1d.default: layers.transposed_convolution_nodes,
    ATEN.conv_transpose2d.input: layers.transposed_convolution_nodes,
    ATEN.conv_transpose3d.input: layers.transposed_convolution_nodes,
    ATEN.linear.default: layers.linear_nodes,
    ATEN.matmul.default: layers.product_nodes,
    ATEN.mm.default: layers.product_nodes,
    ATEN.bmm.default: layers.product_nodes,
    ATEN.addmm.default: layers.sum_with_product_nodes,
    ATEN.baddbmm.default: layers.sum_with_product_nodes,
    ATEN.einsum.default: layers.lettered_product_nodes,
    **dict(zip(recurrent.LAYERS, map(recurrent.recurrent_nodes, recurrent.GATES), strict=True)),
    ATEN.zeros.default: recurrent.zeros_nodes,
    ATEN.scaled_dot_product_attention.default: attention_nodes,
    ATEN.batch_norm.default: layers.batch_norm_nodes,
    ATEN._native_batch_norm_legit_no_training.default: layers.batch_norm_nodes,
    ATEN.rms_norm.default: layers.root_norm_nodes,
    ATEN.layer_norm.default: layers.layer_norm_nodes,
    ATEN.native_layer_norm.default: layers.layer_norm_nodes,
    ATEN.group_norm.default: layers.group_norm_nodes,
    ATEN.native_group_norm.default: layers.group_norm_nodes,
    ATEN.instance_norm.default: layers.group_norm_nodes,
    ATEN.embedding.default: layers.embedding_nodes,
}
MAPS: dict[Any, Translate] = {
    ATEN.upsample_linear1d.vec: maps.resizing_nodes,
    ATEN.upsample_bilinear2d.vec: maps.resizing_nodes,
    ATEN.upsample_bicubic2d.vec: sampling.cubic_nodes,
    ATEN.grid_sampler.default: sampling.grid_sampling_nodes,
    ATEN.affine_grid_generator.default: sampling.affine_grid_nodes,
    ATEN.pad.default: maps.padding_nodes,
    ATEN.constant_pad_nd.default: maps.padding_nodes,
    ATEN.pixel_shuffle.default: maps.pixel_shuffle_nodes,
    ATEN.pixel_unshuffle.default: maps.pixel_unshuffle_nodes,
    ATEN.channel_shuffle.default: maps.channel_shuffle_nodes,
    ATEN.native_channel_shuffle.default: maps.channel_shuffle_nodes,
}
for _ndim in (1, 2, 3):
    _conv = getattr(ATEN, f"conv{_ndim}d")
    LAYERS |= dict.fromkeys((_conv.default, _conv.padding), layers.convolution_nodes)
    MAPS |= {
        getattr(ATEN, f"max_pool{_ndim}d").default: maps.pooling_nodes("MaxPool", _ndim),
        getattr(ATEN, f"avg_pool{_ndim}d").default: maps.pooling_nodes("AveragePool", _ndim),
        getattr(ATEN, f"adaptive_avg_pool{_ndim}d").default: maps.adaptive_pooling_nodes,
        getattr(ATEN, f"upsample_nearest{_ndim}d").vec: maps.upsampling_nodes,
        getattr(ATEN, f"upsample_nearest{_ndim}d").default: maps.upsampling_nodes,
    }
MOVES: dict[Any, Translate] = {
    ATEN.permute.default: moves.permuted_nodes,
    ATEN.transpose.int: moves.permuted_nodes,
    ATEN.swapaxes.default: moves.permuted_nodes,
    ATEN.t.default: moves.permuted_nodes,
    ATEN.mT.default: moves.turned_nodes,
    ATEN.expand.default: moves.expanded_nodes,
    ATEN.expand_as.default: moves.expanded_nodes,
    ATEN.flip.default: moves.flipped_nodes,
    ATEN.repeat_interleave.self_int: moves.repeated_elements_nodes,
    ATEN.repeat.default: moves.repeated_nodes,
    ATEN.select.int: moves.selected_nodes,
    ATEN.slice.Tensor: moves.sliced_nodes,
    ATEN.chunk.default: moves.split_nodes,
    ATEN.split.Tensor: moves.split_nodes,
    ATEN.split_with_sizes.default: moves.split_nodes,
    ATEN.unbind.int: moves.unbound_nodes,
    ATEN.index_select.default: moves.gathered_nodes,
    ATEN.index.Tensor: moves.indexed_nodes,
    ATEN.gather.default: moves.gathered_elements_nodes,
    ATEN.cat.default: moves.concatenated_nodes,
    ATEN.stack.default: moves.stacked_nodes,
    ATEN.roll.default: moves.rolled_nodes,
}
MOVES |= dict.fromkeys(
    (
        ATEN.flatten.using_ints, ATEN.unflatten.int, ATEN.view.default, ATEN.reshape.default,
        ATEN._unsafe_view.default, ATEN.squeeze.dim, ATEN.squeeze.dims, ATEN.squeeze.default,
        ATEN.unsqueeze.default,
    ),
    moves.reshaped_nodes,
)  # fmt: skip
MOVES |= dict.fromkeys(
    (
        ATEN.dropout.default, ATEN.feature_dropout.default, ATEN.alpha_dropout.default, ATEN.clone.default,
        ATEN.contiguous.default, ATEN.detach.default, ATEN.alias.default, ATEN.lift_fresh_copy.default,
    ),
    moves.unchanged_nodes,
)  # fmt: skip
REDUCTIONS: dict[Any, Translate] = {
    ATEN.mean.dim: reductions.reduced_nodes("ReduceMean"),
    ATEN.mean.default: reductions.reduced_nodes("ReduceMean"),
    ATEN.sum.dim_IntList: reductions.reduced_nodes("ReduceSum"),
    ATEN.sum.default: reductions.reduced_nodes("ReduceSum"),
    ATEN.amax.default: reductions.reduced_nodes("ReduceMax"),
    ATEN.amin.default: reductions.reduced_nodes("ReduceMin"),
    ATEN.linalg_vector_norm.default: reductions.reduced_nodes("ReduceL2"),
    ATEN.max.dim: reductions.extreme_nodes("Max"),
    ATEN.min.dim: reductions.extreme_nodes("Min"),
    ATEN.argmax.default: reductions.place_of_extreme_nodes("Max"),
    ATEN.argmin.default: reductions.place_of_extreme_nodes("Min"),
    ATEN.logsumexp.default: reductions.reduced_nodes("ReduceLogSumExp"),
    ATEN.topk.default: reductions.top_nodes,
    ATEN.var.correction: reductions.spread_nodes(rooted=False),
    ATEN.var.dim: reductions.spread_nodes(rooted=False),
    ATEN.std.correction: reductions.spread_nodes(rooted=True),
    ATEN.std.dim: reductions.spread_nodes(rooted=True),
    ATEN.cumsum.default: reductions.running_sum_nodes,
    ATEN.softmax.int: reductions.softmax_nodes("Softmax"),
    ATEN._softmax.default: reductions.softmax_nodes("Softmax"),
    ATEN.log_softmax.int: reductions.softmax_nodes("LogSoftmax"),
    ATEN._log_softmax.default: reductions.softmax_nodes("LogSoftmax"),
}
OPERATORS: dict[Any, Translate] = {**ELEMENTWISE, **LAYERS, **MAPS, **MOVES, **REDUCTIONS}
