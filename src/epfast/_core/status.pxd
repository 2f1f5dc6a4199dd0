"""How a step of the core ended: one list for fits, tilted moments and sweeps."""


cdef enum Status:
    OK
    NO_FIT                  # numerical trouble, no Gaussian or no moments: the site stays as it was
    CALLBACK_FAILED         # stop: an exception is waiting in the loss
    NOT_FINITE              # stop: X holds NaN or infinity, or a product with it overflows
