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
