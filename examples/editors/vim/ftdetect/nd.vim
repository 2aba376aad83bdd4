autocmd BufNewFile,BufRead *.nd setfiletype nd
