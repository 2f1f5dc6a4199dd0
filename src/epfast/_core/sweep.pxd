"""What the loops over scalar sites share."""

from epfast._core.tilted cimport Moments, Trouble


cdef Trouble new_site(
    Moments moments, double y, double h, double s, double power, double copies, double exponent,
    double tau, double nu, double *new_tau, double *new_nu, double *new_scale, bint *refused
) noexcept nogil
