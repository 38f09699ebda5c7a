/* Small arithmetic that the C library keeps in libm, which no process should have to load because of us. Numbers, not NaN. */
#ifndef HR_BASE_NUMBER_H
#define HR_BASE_NUMBER_H

static inline double hr_number_min(double a, double b)
{
    return a < b ? a : b;
}
static inline double hr_number_max(double a, double b)
{
    return a > b ? a : b;
}
/* To the nearest whole number; x is not negative. */
static inline long long hr_number_round(double x)
{
    return (long long)(x + 0.5);
}

#endif
