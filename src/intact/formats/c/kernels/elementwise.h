/* Two operands, element by element: rows of a grid, and a run of elements in each row. */
typedef struct {
    int32_t rows;
    int32_t axes;
    int32_t lengths[@AXES@];
    int32_t first_strides[@AXES@], second_strides[@AXES@]; /* 0 where an operand is broadcast */
    int32_t length, first_step, second_step;
    int32_t first_offset, first_multiplier, first_shift;
    int32_t second_offset, second_multiplier, second_shift;
    int32_t left_shift;
    int32_t output_multiplier, output_shift, output_offset;
    int32_t activation_min, activation_max;
} elementwise_params;
