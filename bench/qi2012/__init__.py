"""Qi and Guo (2012), *Message passing with relaxed moment matching*."""
