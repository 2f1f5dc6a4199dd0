"""Sets the pointers of lapack.pxd."""

include "lapack_source.pxi"

ddot = <Ddot> source_ddot
daxpy = <Daxpy> source_daxpy
dscal = <Dscal> source_dscal
dcopy = <Dcopy> source_dcopy
dgemv = <Dgemv> source_dgemv
dsymv = <Dsymv> source_dsymv
dger = <Dger> source_dger
dsyr = <Dsyr> source_dsyr
dtrsv = <Dtrsv> source_dtrsv
dgemm = <Dgemm> source_dgemm
dsymm = <Dsymm> source_dsymm
dsyrk = <Dsyrk> source_dsyrk
dtrsm = <Dtrsm> source_dtrsm
dtrmm = <Dtrmm> source_dtrmm
dlauum = <Dlauum> source_dlauum
dpotrf = <Dpotrf> source_dpotrf
dpotrs = <Dpotrs> source_dpotrs
dpotri = <Dpotri> source_dpotri
dtrtri = <Dtrtri> source_dtrtri
dsyev = <Dsyev> source_dsyev
