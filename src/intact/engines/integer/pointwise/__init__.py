"""Operations on each element: arithmetic, functions, softmax and changes of encoding."""
