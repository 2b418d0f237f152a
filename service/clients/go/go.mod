module latchgate

go 1.19
