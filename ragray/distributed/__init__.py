"""What runs on a Ray cluster: jobs and services.  The only folder of the library that imports Ray."""
