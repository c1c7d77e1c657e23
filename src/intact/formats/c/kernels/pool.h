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
