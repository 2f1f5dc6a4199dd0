"""Messages of factors that have no closed form: by quadrature, Laplace, sampling, or learned."""
