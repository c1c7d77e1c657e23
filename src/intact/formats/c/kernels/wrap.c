/* The low 32 bits of a number. */
static int32_t wrap(int64_t value)
{
    return signed_bits((uint32_t)((uint64_t)value & 0xffffffffU));
}
