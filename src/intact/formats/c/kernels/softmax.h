/* Softmax along one axis of data [outer, length, inner]. */
typedef struct {
    int32_t outer, length, inner;
    int32_t reach; /* differences below this one count in a logarithm */
    int32_t fraction; /* bits behind the point of a share's code */
    int32_t output_offset;
    int32_t activation_min, activation_max;
} softmax_params;
