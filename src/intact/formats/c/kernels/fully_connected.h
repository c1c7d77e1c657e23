/* Product of data [rows, depth] and weights [output channels, depth]. */
typedef struct {
    int32_t rows, depth, output_channels;
    int32_t per_channel; /* 1: one scale for each output channel, 0: one for all */
    int32_t input_offset, output_offset;
    int32_t activation_min, activation_max;
} fully_connected_params;
