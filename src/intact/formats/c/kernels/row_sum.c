/* Sum of the exponentials of a row's distances from its largest code, 19 bits behind the point. */
static uint32_t row_sum(const int8_t *row, int32_t length, int32_t step, int32_t largest,
                        const int32_t *exponentials)
{
    uint32_t sum = 0;
    for (int32_t index = 0; index < length; index++) {
        sum += (uint32_t)divide_by_power(exponentials[largest - row[index * step]], 12);
    }
    return sum;
}
