/* Softmax along one axis of data [outer, length, inner]. */
typedef struct {
    int32_t outer, length, inner;
    int32_t activation_min, activation_max;
} softmax_params;
