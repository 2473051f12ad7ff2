"""The frame of the jobs' HTML pages."""
