/* A function of one code, tabulated for the codes -128 to 127; input and output may be one. */
static void lookup(const int8_t *table, const int8_t *input, int8_t *output, int32_t length)
{
    for (int32_t index = 0; index < length; index++) {
        output[index] = table[input[index] + 128];
    }
}
