# Writes the file IN as `const char NAME[]`, with a final 0, to the C file OUT:
# every byte a character constant, a line of text a line of C.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
string(REPLACE "'\\x0a'," "'\\n',\n" bytes "${bytes}")
file(WRITE ${OUT} "extern const char ${NAME}[];\n"
     "const char ${NAME}[] = {\n${bytes}0\n};\n")
