/* ---- common.c ------------------------------------------------------------ */
/* Right shifts of negative numbers are arithmetic here, as on every compiler for these machines;
   another one stops at this line. */
typedef char arithmetic_right_shift_needed[((-3 >> 1) == -2) ? 1 : -1];
