/* Shared by the vector approximations (mathf.inc) and the lane functions. */
#ifndef SG_PTX_MATHF_H
#define SG_PTX_MATHF_H

#define TWO_OVER_PI_WORDS 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561

/* For finite |x| >= 2^25: x minus the nearest multiple of pi/2; that multiple modulo 4. */
double ptx_reduce_large(float x, unsigned *quadrant_out);

#endif
