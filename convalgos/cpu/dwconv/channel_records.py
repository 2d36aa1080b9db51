"""What the kernels of `cpu.depthwise.channels` are told: the record of the driver, and its tables."""

from __future__ import annotations

from convalgos.cpu.runtime.plan import arguments, fields

# The record of the driver, and its tables. In these x, w and y are offsets in elements; of a band, in pixels
# of a slice. Elements of x and y have `size` bytes, those of what the kernels read and write `near_size` (x
# and y, or scratch), and all others `sum_size`.
CHANNEL_KERNEL_FIELDS = arguments(
    "size sum_size near_size tasks images blocks vectors block_groups groups last_group channels filters "
    "x_near y_near shares_lines band_count bands runs column_count columns slices slices_out x_n x_c "
    "x_vector x_slice x_pixel y_n y_k y_vector y_slice y_pixel from_vector from_slice from_pixel "
    "from_next to_vector to_slice to_pixel to_next slice_step row_step rows_ahead w_block w_vector "
    "w_channel w_slice w_row scratch_bytes sums bounds gather place fetch taps stride dilation filler "
    "filter_block band_ahead fetch_rows "
    "fold folds fold_count map_rows map_row_count map_row"
)
CHANNEL_BAND = fields("x x_pixels y y_pixels first_run runs")
# Of output rows that meet the same rows of the kernel; where the border is not zero, `lines` tells from where
# under the first tap to go to what lies under each slice and row of the kernel.
ROW_RUN = fields("x w y slice_taps row_taps rows lines")
# Of columns of outputs: padding on both sides, and a table of the outputs that each tap meets; where the
# border is not zero `sources`, which tells from the first column on where each column lies.
COLUMN_BLOCK = fields("x y left right ranges sources")
BEYOND = -(1 << 62)  # in both tables: no element of x lies there, but the fill value
