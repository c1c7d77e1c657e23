/* Largest of `length` codes that lie `step` apart. */
static int32_t row_largest(const int8_t *row, int32_t length, int32_t step)
{
    int32_t largest = row[0];
    for (int32_t index = 1; index < length; index++) {
        const int32_t code = row[index * step];
        largest = (code > largest) ? code : largest;
    }
    return largest;
}
