"""The common frame of the jobs' HTML pages."""
