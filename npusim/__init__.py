"""npusim: Huawei Ascend AI cores in Python."""
