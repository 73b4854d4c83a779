"""A backend for libraries that compute all environments at once: EnvPool, and Gymnasium's vector entry points."""
