/* sum / count, rounded @ROUNDING@; count is positive. */
static int32_t divide_@KIND@(int32_t sum, int32_t count)
{
    int32_t floor = sum / count;
    int32_t rest = sum % count;
    if (rest < 0) {
        rest += count;
        floor -= 1;
    }
    return floor + (@IS_UP@);
}
