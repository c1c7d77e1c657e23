/* Makes codes of whole numbers by a table of `length` of them, from `least` on. */
static void code_of_whole(const int32_t *input, int32_t count, int32_t least, int32_t length,
                          const int8_t *codes, int8_t *output)
{
    for (int32_t index = 0; index < count; index++) {
        const int32_t number = input[index];
        if (number < least) {
            output[index] = codes[0];
        } else if (number >= least + length) {
            output[index] = codes[length - 1];
        } else {
            output[index] = codes[number - least];
        }
    }
}
