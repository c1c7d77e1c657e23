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
