/* Data [batches, height, width, channels] at another height and width. */
typedef struct {
    int32_t batches;
    int32_t input_height, input_width, channels;
    int32_t output_height, output_width;
} resize_params;
