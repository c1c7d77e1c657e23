/* Sum of (input + offset) * weight over a run of channels, modulo 2^32. */
static uint32_t dot_product(const int8_t *input, int32_t offset, const int8_t *weights,
                            int32_t length)
{
    uint32_t sum = 0;
    for (int32_t index = 0; index < length; index++) {
        sum += (uint32_t)((input[index] + offset) * weights[index]);
    }
    return sum;
}
