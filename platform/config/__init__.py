"""Settings and the processes' doors: nothing below imports this package."""
