"""stub"""

import numba

kernel = numba.njit(cache=True, inline="never", nogil=True, error_model="numpy")
