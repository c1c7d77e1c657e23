/* Elements of a grid, moved: rows, and a run of elements in each row. */
typedef struct {
    int32_t rows;
    int32_t axes;
    int32_t lengths[@AXES@];
    int32_t input_strides[@AXES@], output_strides[@AXES@];
    int32_t length, input_step, output_step;
    int32_t input_start, output_start;
} copy_params;
