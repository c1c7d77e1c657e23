/* ---- pool.h -------------------------------------------------------------- */
/* Windows over data [batches, height, width, channels]; one dimension is a height of 1. */
typedef struct {
    int32_t batches;
    int32_t input_height, input_width, channels;
    int32_t output_height, output_width;
    int32_t kernel_height, kernel_width;
    int32_t stride_height, stride_width;
    int32_t pad_top, pad_left;
    int32_t count_pads; /* 1: a mean is over the whole window, each pad counting as pad_value */
    int32_t pad_value;
    int32_t input_offset, output_offset;
    int32_t activation_min, activation_max;
} pool_params;
/* ---- average_pool.c ------------------------------------------------------ */
/* Means of windows, rounded @ROUNDING@. */
static void average_pool_@KIND@(const pool_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t out_y = 0; out_y < p->output_height; out_y++) {
            for (int32_t out_x = 0; out_x < p->output_width; out_x++) {
                for (int32_t channel = 0; channel < p->channels; channel++) {
                    int32_t sum = 0;
                    int32_t count = 0;
                    for (int32_t ky = 0; ky < p->kernel_height; ky++) {
                        const int32_t y = out_y * p->stride_height - p->pad_top + ky;
                        for (int32_t kx = 0; kx < p->kernel_width; kx++) {
                            const int32_t x = out_x * p->stride_width - p->pad_left + kx;
                            if (y >= 0 && y < p->input_height && x >= 0 && x < p->input_width) {
                                sum += p->input_offset +
                                       input[(y * p->input_width + x) * p->channels + channel];
                                count++;
                            } else if (p->count_pads) {
                                sum += p->pad_value;
                                count++;
                            }
                        }
                    }
                    const int32_t mean = divide_@KIND@(sum, (count > 0) ? count : 1);
                    *output++ = clamp_code(mean, p->output_offset, p->activation_min,
                                           p->activation_max);
                }
            }
        }
        input += p->input_height * p->input_width * p->channels;
    }
}
/* ---- max_pool.c ---------------------------------------------------------- */
/* Largest codes of windows. */
static void max_pool(const pool_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t out_y = 0; out_y < p->output_height; out_y++) {
            for (int32_t out_x = 0; out_x < p->output_width; out_x++) {
                for (int32_t channel = 0; channel < p->channels; channel++) {
                    int32_t largest = -128;
                    for (int32_t ky = 0; ky < p->kernel_height; ky++) {
                        const int32_t y = out_y * p->stride_height - p->pad_top + ky;
                        if (y < 0 || y >= p->input_height) {
                            continue;
                        }
                        for (int32_t kx = 0; kx < p->kernel_width; kx++) {
                            const int32_t x = out_x * p->stride_width - p->pad_left + kx;
                            if (x < 0 || x >= p->input_width) {
                                continue;
                            }
                            const int32_t code =
                                input[(y * p->input_width + x) * p->channels + channel];
                            largest = (code > largest) ? code : largest;
                        }
                    }
                    *output++ = clamp_code(largest, 0, p->activation_min, p->activation_max);
                }
            }
        }
        input += p->input_height * p->input_width * p->channels;
    }
}
/* ---- reduce.h ------------------------------------------------------------ */
/* One result for each cell of a grid, from rows of another grid and a run of elements in each. */
typedef struct {
    int32_t results;
    int32_t kept_axes;
    int32_t kept_lengths[@AXES@], kept_strides[@AXES@];
    int32_t rows;
    int32_t axes;
    int32_t lengths[@AXES@], strides[@AXES@];
    int32_t length, step;
    int32_t input_offset; /* taken with each element of a sum */
    int32_t factor, divisor;
    int32_t output_multiplier, output_shift, output_offset;
    int32_t activation_min, activation_max;
} reduce_params;
/* ---- reduce_max.c -------------------------------------------------------- */
/* Largest codes over axes. */
static void reduce_max(const reduce_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t result = 0; result < p->results; result++) {
        const int8_t *cell =
            input + strided_offset(result, p->kept_lengths, p->kept_strides, p->kept_axes);
        int8_t found = cell[0];
        for (int32_t row = 0; row < p->rows; row++) {
            const int8_t *run = cell + strided_offset(row, p->lengths, p->strides, p->axes);
            for (int32_t index = 0; index < p->length; index++) {
                const int8_t code = run[index * p->step];
                found = (code > found) ? code : found;
            }
        }
        *output++ = found;
    }
}
/* ---- reduce_mean.c ------------------------------------------------------- */
/* Means over axes, rounded @ROUNDING@. */
static void reduce_mean_@KIND@(const reduce_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t result = 0; result < p->results; result++) {
        const int32_t sum = sum_of(
            p, input + strided_offset(result, p->kept_lengths, p->kept_strides, p->kept_axes));
        const int32_t mean = divide_@KIND@(sum * p->factor, p->divisor);
        *output++ = clamp_code(mean, p->output_offset, p->activation_min, p->activation_max);
    }
}
/* ---- reduce_min.c -------------------------------------------------------- */
/* Smallest codes over axes. */
static void reduce_min(const reduce_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t result = 0; result < p->results; result++) {
        const int8_t *cell =
            input + strided_offset(result, p->kept_lengths, p->kept_strides, p->kept_axes);
        int8_t found = cell[0];
        for (int32_t row = 0; row < p->rows; row++) {
            const int8_t *run = cell + strided_offset(row, p->lengths, p->strides, p->axes);
            for (int32_t index = 0; index < p->length; index++) {
                const int8_t code = run[index * p->step];
                found = (code < found) ? code : found;
            }
        }
        *output++ = found;
    }
}
/* ---- reduce_sum.c -------------------------------------------------------- */
/* Sums over axes, times a multiplier: sums, and means where it has the divisor in it. */
static void reduce_sum_@KIND@(const reduce_params *p, const int8_t *input, int8_t *output)
{
    for (int32_t result = 0; result < p->results; result++) {
        const int32_t sum = sum_of(
            p, input + strided_offset(result, p->kept_lengths, p->kept_strides, p->kept_axes));
        const int32_t scaled =
            @RESCALE(sum)@;
        *output++ =
            clamp_code(scaled, p->output_offset, p->activation_min, p->activation_max);
    }
}
/* ---- resize.h ------------------------------------------------------------ */
/* Data [batches, height, width, channels] at another height and width. */
typedef struct {
    int32_t batches;
    int32_t input_height, input_width, channels;
    int32_t output_height, output_width;
} resize_params;
/* ---- resize_linear.c ----------------------------------------------------- */
/* Interpolates between two rows and two columns with weights of 10 bits and rounds once. For each
   row or column of the output, ys and xs hold three numbers: the two that it lies between, and
   the weight of the second in 1024ths. */
static void resize_linear_@KIND@(const resize_params *p, const int32_t *ys, const int32_t *xs,
                                 const int8_t *input, int8_t *output)
{
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t y = 0; y < p->output_height; y++) {
            const int32_t *row = ys + 3 * y;
            for (int32_t x = 0; x < p->output_width; x++) {
                const int32_t *column = xs + 3 * x;
                const int8_t *top = input + row[0] * p->input_width * p->channels;
                const int8_t *bottom = input + row[1] * p->input_width * p->channels;
                for (int32_t channel = 0; channel < p->channels; channel++) {
                    const int32_t left = column[0] * p->channels + channel;
                    const int32_t right = column[1] * p->channels + channel;
                    const int32_t above =
                        top[left] * (1024 - column[2]) + top[right] * column[2];
                    const int32_t below =
                        bottom[left] * (1024 - column[2]) + bottom[right] * column[2];
                    const int32_t sum = above * (1024 - row[2]) + below * row[2];
                    *output++ = (int8_t)@MEAN_OF_SUM@;
                }
            }
        }
        input += p->input_height * p->input_width * p->channels;
    }
}
/* ---- resize_nearest.c ---------------------------------------------------- */
/* Takes the pixel of row ys[y] and column xs[x]. */
static void resize_nearest(const resize_params *p, const int32_t *ys, const int32_t *xs,
                           const int8_t *input, int8_t *output)
{
    for (int32_t batch = 0; batch < p->batches; batch++) {
        for (int32_t y = 0; y < p->output_height; y++) {
            for (int32_t x = 0; x < p->output_width; x++) {
                memcpy(output, input + (ys[y] * p->input_width + xs[x]) * p->channels,
                       (size_t)p->channels);
                output += p->channels;
            }
        }
        input += p->input_height * p->input_width * p->channels;
    }
}
