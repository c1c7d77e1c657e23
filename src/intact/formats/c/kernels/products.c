/* ---- convolution.h ------------------------------------------------------- */
/* Convolution of data [batches, height, width, channels]; one dimension is a height of 1. */
typedef struct {
    int32_t batches;
    int32_t input_height, input_width, input_channels;
    int32_t output_height, output_width, output_channels;
    int32_t kernel_height, kernel_width;
    int32_t stride_height, stride_width;
    int32_t dilation_height, dilation_width;
    int32_t pad_top, pad_left;
    int32_t groups;
    int32_t per_channel; /* 1: one scale for each output channel, 0: one for all */
    int32_t input_offset, output_offset;
    int32_t activation_min, activation_max;
} convolution_params;
/* ---- convolution.c ------------------------------------------------------- */
/* Convolution; weights are [output channels, kernel height, kernel width, channels of a group]. */
static void convolution_@KIND@(const convolution_params *p, const int8_t *input,
                               const int8_t *weights, const int32_t *bias,
                               const int32_t *@FIRST@, const int32_t *@SECOND@, int8_t *output)
{
    const int32_t depth = p->input_channels / p->groups;
    const int32_t group_outputs = p->output_channels / p->groups;
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t out_y = 0; out_y < p->output_height; out_y++) {
            for (int32_t out_x = 0; out_x < p->output_width; out_x++) {
                for (int32_t channel = 0; channel < p->output_channels; channel++) {
                    const int32_t scale = channel * p->per_channel;
                    const int8_t *group = input + channel / group_outputs * depth;
                    const int8_t *taps =
                        weights + channel * p->kernel_height * p->kernel_width * depth;
                    uint32_t sum = @START@;
                    for (int32_t ky = 0; ky < p->kernel_height; ky++) {
                        const int32_t y =
                            out_y * p->stride_height - p->pad_top + ky * p->dilation_height;
                        if (y < 0 || y >= p->input_height) {
                            continue;
                        }
                        for (int32_t kx = 0; kx < p->kernel_width; kx++) {
                            const int32_t x =
                                out_x * p->stride_width - p->pad_left + kx * p->dilation_width;
                            if (x < 0 || x >= p->input_width) {
                                continue;
                            }
                            sum += dot_product(
                                group + (y * p->input_width + x) * p->input_channels,
                                p->input_offset, taps + (ky * p->kernel_width + kx) * depth,
                                depth);
                        }
                    }
                    const int32_t scaled =
                        @FINISH@;
                    *output++ = clamp_code(scaled, p->output_offset, p->activation_min,
                                           p->activation_max);
                }
            }
        }
        input += p->input_height * p->input_width * p->input_channels;
    }
}
/* ---- depthwise_convolution.c --------------------------------------------- */
/* Depthwise convolution; weights are [1, kernel height, kernel width, output channels]. */
static void depthwise_convolution_@KIND@(const convolution_params *p, const int8_t *input,
                                         const int8_t *weights, const int32_t *bias,
                                         const int32_t *@FIRST@, const int32_t *@SECOND@,
                                         int8_t *output)
{
    const int32_t group_outputs = p->output_channels / p->groups;
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t out_y = 0; out_y < p->output_height; out_y++) {
            for (int32_t out_x = 0; out_x < p->output_width; out_x++) {
                for (int32_t channel = 0; channel < p->output_channels; channel++) {
                    const int32_t scale = channel * p->per_channel;
                    const int8_t *plane = input + channel / group_outputs;
                    uint32_t sum = @START@;
                    for (int32_t ky = 0; ky < p->kernel_height; ky++) {
                        const int32_t y =
                            out_y * p->stride_height - p->pad_top + ky * p->dilation_height;
                        if (y < 0 || y >= p->input_height) {
                            continue;
                        }
                        for (int32_t kx = 0; kx < p->kernel_width; kx++) {
                            const int32_t x =
                                out_x * p->stride_width - p->pad_left + kx * p->dilation_width;
                            if (x < 0 || x >= p->input_width) {
                                continue;
                            }
                            const int32_t value =
                                plane[(y * p->input_width + x) * p->input_channels];
                            const int32_t weight =
                                weights[(ky * p->kernel_width + kx) * p->output_channels +
                                        channel];
                            sum += (uint32_t)((value + p->input_offset) * weight);
                        }
                    }
                    const int32_t scaled =
                        @FINISH@;
                    *output++ = clamp_code(scaled, p->output_offset, p->activation_min,
                                           p->activation_max);
                }
            }
        }
        input += p->input_height * p->input_width * p->input_channels;
    }
}
/* ---- transposed_convolution.c -------------------------------------------- */
/* Transposed convolution, each output gathered from the inputs that reach it, so that no memory
   for sums is needed; weights are [output channels, kernel height, kernel width, channels of a
   group], the pads are cut off the top and left of the full result. */
static void transposed_convolution_@KIND@(const convolution_params *p, const int8_t *input,
                                          const int8_t *weights, const int32_t *bias,
                                          const int32_t *@FIRST@, const int32_t *@SECOND@,
                                          int8_t *output)
{
    const int32_t depth = p->input_channels / p->groups;
    const int32_t group_outputs = p->output_channels / p->groups;
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t out_y = 0; out_y < p->output_height; out_y++) {
            for (int32_t out_x = 0; out_x < p->output_width; out_x++) {
                for (int32_t channel = 0; channel < p->output_channels; channel++) {
                    const int32_t scale = channel * p->per_channel;
                    const int8_t *group = input + channel / group_outputs * depth;
                    const int8_t *taps =
                        weights + channel * p->kernel_height * p->kernel_width * depth;
                    uint32_t sum = @START@;
                    for (int32_t ky = 0; ky < p->kernel_height; ky++) {
                        const int32_t far_y = out_y + p->pad_top - ky * p->dilation_height;
                        const int32_t y = far_y / p->stride_height;
                        if (far_y < 0 || far_y % p->stride_height != 0 || y >= p->input_height) {
                            continue;
                        }
                        for (int32_t kx = 0; kx < p->kernel_width; kx++) {
                            const int32_t far_x = out_x + p->pad_left - kx * p->dilation_width;
                            const int32_t x = far_x / p->stride_width;
                            if (far_x < 0 || far_x % p->stride_width != 0 ||
                                x >= p->input_width) {
                                continue;
                            }
                            sum += dot_product(
                                group + (y * p->input_width + x) * p->input_channels,
                                p->input_offset, taps + (ky * p->kernel_width + kx) * depth,
                                depth);
                        }
                    }
                    const int32_t scaled =
                        @FINISH@;
                    *output++ = clamp_code(scaled, p->output_offset, p->activation_min,
                                           p->activation_max);
                }
            }
        }
        input += p->input_height * p->input_width * p->input_channels;
    }
}
/* ---- fully_connected.h --------------------------------------------------- */
/* Product of data [rows, depth] and weights [output channels, depth]. */
typedef struct {
    int32_t rows, depth, output_channels;
    int32_t per_channel; /* 1: one scale for each output channel, 0: one for all */
    int32_t input_offset, output_offset;
    int32_t activation_min, activation_max;
} fully_connected_params;
/* ---- fully_connected.c --------------------------------------------------- */
/* Fully connected layer. */
static void fully_connected_@KIND@(const fully_connected_params *p, const int8_t *input,
                                   const int8_t *weights, const int32_t *bias,
                                   const int32_t *@FIRST@, const int32_t *@SECOND@,
                                   int8_t *output)
{
    for (int32_t row = 0; row < p->rows; row++) {
        for (int32_t channel = 0; channel < p->output_channels; channel++) {
            const int32_t scale = channel * p->per_channel;
            uint32_t sum = @START@;
            sum += dot_product(input, p->input_offset, weights + channel * p->depth, p->depth);
            const int32_t scaled =
                @FINISH@;
            *output++ = clamp_code(scaled, p->output_offset, p->activation_min,
                                   p->activation_max);
        }
        input += p->depth;
    }
}
/* ---- batch_matmul.h ------------------------------------------------------ */
/* Products of matrices [rows, depth] and [depth, columns], one for each cell of a grid. */
typedef struct {
    int32_t products;
    int32_t axes;
    int32_t lengths[@AXES@];
    int32_t first_strides[@AXES@], second_strides[@AXES@]; /* 0 where an operand is broadcast */
    int32_t rows, depth, columns;
    int32_t first_offset, second_offset, output_offset;
    int32_t output_multiplier, output_shift;
    int32_t activation_min, activation_max;
} batch_matmul_params;
/* ---- batch_matmul.c ------------------------------------------------------ */
/* Matrix products of two activations. */
static void batch_matmul_@KIND@(const batch_matmul_params *p, const int8_t *first,
                                const int8_t *second, int8_t *output)
{
    for (int32_t product = 0; product < p->products; product++) {
        const int8_t *a = first + strided_offset(product, p->lengths, p->first_strides, p->axes);
        const int8_t *b = second + strided_offset(product, p->lengths, p->second_strides, p->axes);
        for (int32_t row = 0; row < p->rows; row++) {
            for (int32_t column = 0; column < p->columns; column++) {
                uint32_t sum = 0;
                for (int32_t index = 0; index < p->depth; index++) {
                    sum += (uint32_t)((a[row * p->depth + index] + p->first_offset) *
                                      (b[index * p->columns + column] + p->second_offset));
                }
                const int32_t scaled =
                    @RESCALE(signed_bits(sum))@;
                *output++ = clamp_code(scaled, p->output_offset, p->activation_min,
                                       p->activation_max);
            }
        }
    }
}
