/* Where row number `row` of a grid starts, in elements. */
static int32_t strided_offset(int32_t row, const int32_t *lengths, const int32_t *strides,
                              int32_t axes)
{
    int32_t offset = 0;
    for (int32_t axis = axes - 1; axis >= 0; axis--) {
        offset += row % lengths[axis] * strides[axis];
        row /= lengths[axis];
    }
    return offset;
}
