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
