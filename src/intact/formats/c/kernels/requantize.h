/* Codes brought to another scale. */
typedef struct {
    int32_t length;
    int32_t input_offset;
    int32_t output_multiplier, output_shift, output_offset;
    int32_t activation_min, activation_max;
} requantize_params;
